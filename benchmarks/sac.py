"""SAC beside Stable-Baselines3's: returns at equal steps, and steps per second with the same networks and settings on one thread.

python benchmarks/sac.py pendulum speed        # Pendulum-v1 with three seeds, and the speed with networks of two sizes
python benchmarks/sac.py speed --repeats 5
python benchmarks/sac.py halfcheetah hopper    # three seeds each of 50,000 steps, with networks of 64 x 64

Both take a gradient step on 256 rows for each step of one environment, with Adam at the same rate. fugu's settings are those of its
presets, where several steps are played before as many gradient steps are taken; Stable-Baselines3 learns after every step, its default.
For the speed both do it either way. Returns are means of 20 episodes of the mean action. CPU seconds are those of the process: the
machine may be shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import torch

import fugu
import harness
from fugu.config import override
from fugu.native import set_threads
from fugu.ops.mlp import mlp
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.config import TrainConfig
from fugu.trainer.evaluate import evaluate
from fugu.trainer.interrupt import Interrupt

BATCH = 256
EPISODES = 20


def pendulum(repeats: int) -> dict[str, Any]:
    return learning("Pendulum-v1", 6_000, repeats)


def halfcheetah(repeats: int) -> dict[str, Any]:
    return learning("HalfCheetah-v5", 50_000, repeats, hidden=(64, 64))


def hopper(repeats: int) -> dict[str, Any]:
    return learning("Hopper-v5", 50_000, repeats, hidden=(64, 64))


def learning(env: str, steps: int, repeats: int, **policy: Any) -> dict[str, Any]:
    """Train with as many seeds as there are repeats, the two by turns. ``policy``: settings of both networks."""
    runs: dict[str, list[dict[str, float]]] = {"fugu": [], "sb3": []}
    for seed in range(repeats):
        changes = {f"policy.{name}": value for name, value in policy.items()}
        config = override(preset(env, algorithm="sac"), {"steps": steps, "seed": seed, "threads": 1, **changes})
        for name, train in (("fugu", ours), ("sb3", theirs)):
            runs[name].append(train(config, episodes=EPISODES))
    return {"env": env, "steps": steps, "hidden": list(config.policy.hidden), **runs}


def speed(repeats: int) -> dict[str, Any]:
    """Time steps with learning on HalfCheetah-v5, and the matrix products alone: at the rate of fugu's kernels, and by torch."""
    return {f"{width} x {width}": _speed(width, repeats) for width in (64, 256)}


def _speed(width: int, repeats: int) -> dict[str, Any]:
    steps, start = 1_000, 200
    changes = {"steps": steps, "threads": 1, "policy.hidden": (width, width), "replay.start": start, "replay.size": 10_000}
    config = override(preset("HalfCheetah-v5", algorithm="sac"), changes)
    needed = Products(width, observations=17, actions=6, updates=steps - start)
    every = {1: override(config, {"replay.every": 1}), config.replay.every: config}
    contestants = {
        **{f"fugu_every_{n}": partial(_spent, ours, each) for n, each in every.items()},
        **{f"sb3_every_{n}": partial(_spent, theirs, each) for n, each in every.items()},
        "products": needed.at_the_rate_of_kernels,
        "products_by_torch": needed.by_torch,
    }
    found = {name: result.summary() for name, result in harness.alternate(contestants, repeats).items()}
    median = {name: summary["median"] for name, summary in found.items()}
    return {
        "steps": steps,
        "updates": steps - start,
        "operations": needed.operations,
        "cpu_seconds": found,
        "sb3_over_fugu": {f"every_{n}": median[f"sb3_every_{n}"] / median[f"fugu_every_{n}"] for n in every},
        "share_of_products": {f"every_{n}": median["products"] / median[f"fugu_every_{n}"] for n in every},
    }


def _spent(train: Callable[[TrainConfig], dict[str, float]], config: TrainConfig) -> float:
    return train(config)["cpu_seconds"]


def ours(config: TrainConfig, episodes: int = 0) -> dict[str, float]:
    torch.set_num_threads(1)
    trainer = make_trainer(config)
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.start()
        trainer.run(lambda metrics: None, Interrupt())
        spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        if not episodes:
            return spent
        with fugu.vector.make(config.env, 10, backend="serial") as vec:
            act, seed = trainer.algorithm.act, 1000 + config.seed
            found = evaluate(vec, act, episodes=episodes, seed=seed, greedy=True, device=torch.device("cpu"))
        return {"seed": config.seed, "mean_return": found.mean, **spent}
    finally:
        trainer.close()


def theirs(config: TrainConfig, episodes: int = 0) -> dict[str, float]:
    from stable_baselines3 import SAC
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    every = 1 if episodes else config.replay.every
    model = SAC(
        "MlpPolicy",
        Monitor(gymnasium.make(config.env)),
        learning_rate=config.optimizer.learning_rate,
        batch_size=BATCH,
        buffer_size=config.replay.size,
        learning_starts=config.replay.start,
        train_freq=every,
        gradient_steps=every,
        policy_kwargs={"net_arch": list(config.policy.hidden)},
        seed=config.seed,
        device="cpu",
    )
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(config.steps)
    spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    if not episodes:
        return spent
    env = Monitor(gymnasium.make(config.env))
    env.reset(seed=1000 + config.seed)
    mean, _ = evaluate_policy(model, env, n_eval_episodes=episodes)
    return {"seed": config.seed, "mean_return": float(mean), **spent}  # type: ignore[arg-type]


class Products:
    """The matrix products of gradient steps that cannot be left out.

    Forward, and backward for weights and for inputs, are one of each layer; nobody asks for the gradient of the first layer's input,
    but that of actions, through the lower of both critics. The policy runs twice, the slow critics once, the critics twice.
    """

    def __init__(self, width: int, *, observations: int, actions: int, updates: int) -> None:
        self.width, self.updates = width, updates
        policy = [(observations, width), (width, width), (width, 2 * actions)]
        critic = [(observations + actions, width), (width, width), (width, 1)]
        self.counts = [(policy, 3), (policy[1:], 1), (critic, 2 + 2 + 2 + 2 + 1), (critic[1:], 2)]
        self.operations = updates * sum(
            2 * BATCH * inner * outer * count for layers, count in self.counts for inner, outer in layers
        )

    def at_the_rate_of_kernels(self) -> float:
        """Return the CPU seconds that as many operations take in the kernel's best case: one layer after the other of equal width."""
        set_threads(1)
        x, weight, bias = torch.randn(BATCH, self.width), torch.randn(self.width, self.width), torch.zeros(self.width)
        calls = round(self.operations / (4 * 2 * BATCH * self.width**2))
        start = time.process_time()
        for _ in range(calls):
            mlp(x, [weight] * 4, [bias] * 4, "relu")
        return time.process_time() - start

    def by_torch(self) -> float:
        torch.set_num_threads(1)
        pairs = [(*pair, count) for layers, count in self.counts for pair in layers]
        rows = {size: torch.randn(BATCH, size) for inner, outer, _ in pairs for size in (inner, outer)}
        weights = {(inner, outer): torch.randn(inner, outer) for inner, outer, _ in pairs}
        start = time.process_time()
        for _ in range(self.updates):
            for inner, outer, count in pairs:
                for _ in range(count):
                    rows[inner] @ weights[inner, outer]
        return time.process_time() - start


if __name__ == "__main__":
    cases = {"pendulum": pendulum, "speed": speed, "halfcheetah": halfcheetah, "hopper": hopper}
    harness.main("sac", __doc__, cases, repeats=3, add=True)
