"""The contestants of ``train.py``, each in a process of its own, so that none lives with another's threads or memory settings.

``Contestant("fugu", env=..., ...)`` starts one; ``rate(seconds)`` lets it train for that long while the others sleep. As a script,
``python benchmarks/trainers.py sb3_solve SEED`` and ``... board LOG.BOARD SECONDS`` are the processes of the cases that are
measured from outside.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from harness import Step, rate

GAME = "ALE/Pong-v5"
"""what those that see screens play"""


class Contestant:
    """A trainer in its own process. Between measurements it waits for a message and costs nothing."""

    def __init__(self, kind: str, **settings: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self._process = context.Process(target=_serve, args=(end, kind, settings))
        self._process.start()
        end.close()
        self._pipe.recv()

    def rate(self, seconds: float) -> float:
        self._pipe.send(seconds)
        return self._pipe.recv()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pipe.send(None)
        self._process.join()


def _serve(pipe: Any, kind: str, settings: dict[str, Any]) -> None:
    step = KINDS[kind](**settings)
    pipe.send("ready")
    while (seconds := pipe.recv()) is not None:
        pipe.send(rate(step, seconds))
    for child in multiprocessing.active_children():
        child.terminate()  # SB3's environments would outlive their parent
    pipe.close()
    os._exit(0)


def fugu(env: str, **settings: Any) -> Step:
    """Training as in ``fugu train`` but for the board and the files."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command does
    from fugu.config import override
    from fugu.presets import preset
    from fugu.trainer.build import make_trainer
    from fugu.trainer.interrupt import Interrupt

    trainer = make_trainer(override(preset(env), {"steps": 10**12, **settings}))
    trainer.start()
    interrupt = Interrupt()

    def step() -> int:
        before = trainer.steps
        trainer.update(interrupt)
        return trainer.steps - before

    return step


def sb3(vec: str = "dummy", num_envs: int = 1, **settings: Any) -> Step:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(1)
    kind, kwargs = (DummyVecEnv, {}) if vec == "dummy" else (SubprocVecEnv, {"start_method": "fork"})
    envs = make_vec_env("CartPole-v1", n_envs=num_envs, seed=0, vec_env_cls=kind, vec_env_kwargs=kwargs)
    model = PPO("MlpPolicy", envs, seed=0, device="cpu", **settings)
    rows = model.n_steps * num_envs

    def step() -> int:
        model.learn(rows, reset_num_timesteps=False)
        return rows

    return step


def sb3_screens(vec: str, num_envs: int) -> Step:
    """An Atari game with the settings of RL Baselines3 Zoo. The same environments as fugu's; torch has all cores."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    from fugu.envs.atari import make

    factories = [partial(make, GAME) for _ in range(num_envs)]
    envs = DummyVecEnv(factories) if vec == "dummy" else SubprocVecEnv(factories, start_method="fork")
    model = PPO("CnnPolicy", envs, seed=0, device="cpu", n_steps=128, batch_size=256, n_epochs=4, ent_coef=0.01, clip_range=0.1)

    def step() -> int:
        model.learn(128 * num_envs, reset_num_timesteps=False)
        return 128 * num_envs

    return step


def plain(**settings: Any) -> Step:
    import torch

    from cleanrl_style import ppo

    torch.set_num_threads(1)
    updates = ppo(**settings)
    return lambda: next(updates)


def sgemm(rows: int, inner: int, columns: int) -> Step:
    """Floating-point operations instead of steps: the products that torch computes best."""
    import torch

    a, b, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)
    times = max(1, 10**9 // (2 * rows * inner * columns))

    def step() -> int:
        for _ in range(times):
            torch.mm(a, b, out=out)
        return times * 2 * rows * inner * columns

    return step


KINDS: dict[str, Callable[..., Step]] = {
    "fugu": fugu,
    "sb3": sb3,
    "sb3_screens": sb3_screens,
    "plain": plain,
    "sgemm": sgemm,
}


def sb3_solve(seed: int) -> None:
    """SB3 with the CartPole settings of RL Baselines3 Zoo until 475 over 100 episodes, at most as long as the Zoo trains.

    Torch has one thread, with which minibatches of 256 rows are faster than with two.
    """
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)

    class Solved(BaseCallback):
        def _on_step(self) -> bool:
            last = self.model.ep_info_buffer  # of the last 100 episodes
            return len(last) < 100 or sum(episode["r"] for episode in last) / len(last) < 475

    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        seed=seed,
        device="cpu",
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: left * 0.001,
        clip_range=lambda left: left * 0.2,
    )
    model.learn(100_000, callback=Solved())
    print(json.dumps({"steps": model.num_timesteps}))


def board(kind: str, seconds: float) -> None:
    """``fugu train cartpole`` for a while with this board on the standard output; what it took goes to the standard error."""
    import fugu
    import fugu.run.live as live
    from fugu.run.dashboard import Dashboard

    spent = {"board": 0.0}

    class Timed(Dashboard):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.began = time.perf_counter()

        def update(self, metrics: Any) -> None:
            start = time.perf_counter()
            super().update(metrics)
            end = time.perf_counter()
            spent["board"] += end - start
            spent["steps"], spent["run"] = metrics["steps"], end - self.began
            if spent["run"] > seconds:
                raise KeyboardInterrupt

    live.Dashboard = Timed  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as runs:
        try:
            fugu.train("cartpole", runs=runs, steps=10**12, **{"log.board": kind})
        except KeyboardInterrupt:
            print(json.dumps(spent), file=sys.stderr)


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    if name == "sb3_solve":
        sb3_solve(int(words[0]))
    else:
        board(words[0], float(words[1]))
