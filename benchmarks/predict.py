"""Claims about acting with a trained policy: python benchmarks/predict.py [--out FILE] [case ...]

What ``policy(obs)`` costs for one observation, beside the forward pass of the same network on a row that is there already, in
inference mode, and beside Stable-Baselines3's ``predict`` with a network of the same sizes on the same observation. Cases, with
two layers of 64: CartPole, the same with an LSTM of 64 between layers and heads (SB3 itself has none), a Dict of a vector, a
choice and bits as observation, a mask in the observation (SB3 itself has none), and as actions those of Pendulum, several
choices, bits, and a Dict of a choice and numbers (which SB3 does not take). "kernel alone" is the bare native kernel of the MLP
without torch around it: what is left to gain. "policy.predict" keeps no memory: it copies the state out of numpy and back.
Needs the extra `sb3`. CPU time of one thread.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces as gs

import fugu
from fugu import native as core
from fugu.policy.config import PolicyConfig
from fugu.run.policy import Policy
from fugu.trainer.config import TrainConfig
from fugu.trainer.config_parts import LogConfig
from fugu.vector.config import VectorConfig
from harness import alternate, main, ratios, summaries

CALLS = 200
"""calls that are timed together"""


VECTOR = gs.Box(-1, 1, (4,), np.float32)


class Mixed(gymnasium.Env):
    """An observation of several parts."""

    observation_space: gs.Space = gs.Dict(speed=VECTOR, pick=gs.Discrete(3), lamps=gs.MultiBinary(4))
    action_space: gs.Space = gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, bool(self.np_random.random() < 0.1), False, {}


class Masked(Mixed):
    observation_space = gs.Dict(speed=VECTOR, action_mask=gs.MultiBinary(5))
    action_space = gs.Discrete(5)


class Several(Mixed):
    observation_space, action_space = VECTOR, gs.MultiDiscrete([3, 4])


class Bits(Mixed):
    observation_space, action_space = VECTOR, gs.MultiBinary(4)


class Structured(Mixed):
    observation_space, action_space = VECTOR, gs.Dict(turn=gs.Discrete(2), gas=gs.Box(-2, 2, (2,), np.float32))


def trained(env: str, net: PolicyConfig, folder: str) -> Policy:
    config = TrainConfig(
        env=env,
        steps=1024,
        horizon=32,
        minibatch=256,
        threads=1,
        policy=net,
        vector=VectorConfig(num_envs=8, backend="serial"),
        log=LogConfig(board="off"),
    )
    return fugu.load(fugu.train(config=config, runs=folder).path)


def sb3(env: gymnasium.Env, kind: str, obs: Any) -> Callable[[], Any]:
    from stable_baselines3 import PPO

    model = PPO(kind, env, policy_kwargs={"net_arch": [64, 64]}, device="cpu")
    return lambda: model.predict(obs, deterministic=True)


def kernel_alone(policy: Policy, row: torch.Tensor) -> Callable[[], Any]:
    net = policy.network.net
    layers = [*net.trunk.layers, net.heads[0]]
    weights, biases = ([tensor.numpy() for tensor in of] for of in zip(*((x.weight, x.bias) for x in layers), strict=True))
    x, out = row.numpy(), np.empty((1, len(biases[-1])), np.float32)
    return lambda: core.native.mlp_forward(x, weights, biases, [out], [1, 1, 0], 1)


def cpu_microseconds(many: Callable[[], Any]) -> float:
    """Return the CPU time of a call, of ``CALLS`` together: on a machine with other work, the clock says little."""
    start = time.process_time()
    many()
    return (time.process_time() - start) / CALLS * 1e6


def case(env: str, net: PolicyConfig, peer: Callable[[Any], Callable[[], Any]] | None, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        policy = trained(env, net, folder)
    obs = policy.observation_space.sample()
    row, first = torch.from_numpy(policy._reader.observations.rows(obs)[0]), torch.zeros(1, dtype=torch.bool)
    state = policy.network.initial_state(1) if policy.network.state_size else None
    _, memory = policy.predict(obs)

    @torch.inference_mode()
    def forward_many() -> None:
        for _ in range(CALLS):
            policy.network(row, state, first)

    def policy_many() -> None:
        for _ in range(CALLS):
            policy(obs)

    def predict_many() -> None:
        for _ in range(CALLS):
            policy.predict(obs, memory)

    calls: dict[str, Callable[[], Any]] = {
        "policy(obs)": policy_many,
        "forward alone": forward_many,
        "policy.predict": predict_many,
    }
    if peer is not None:
        call = peer(obs)
        calls["SB3 predict"] = lambda: [call() for _ in range(CALLS)]
    if policy.network.state_size == 0 and isinstance(policy.observation_space, gs.Box):
        bare = kernel_alone(policy, row)
        calls["kernel alone"] = lambda: [bare() for _ in range(CALLS)]
    results = alternate({name: partial(cpu_microseconds, call) for name, call in calls.items()}, repeats)
    pairs = [("policy(obs)", "forward alone"), ("policy.predict", "forward alone")]
    pairs += [("SB3 predict", "policy(obs)")] if peer is not None else []
    return {"us": summaries(results), "ratios": ratios(results, pairs)}


TWO = PolicyConfig(hidden=(64, 64))
HERE = Path(__file__).resolve()
CASES = {
    "mlp": partial(case, "CartPole-v1", TWO, lambda obs: sb3(gymnasium.make("CartPole-v1"), "MlpPolicy", obs)),
    "lstm": partial(case, "CartPole-v1", PolicyConfig(hidden=(64, 64), core="lstm", core_size=64), None),
    "dict": partial(case, f"{HERE}:Mixed", TWO, lambda obs: sb3(Mixed(), "MultiInputPolicy", obs)),
    "masked": partial(case, f"{HERE}:Masked", TWO, None),
    "box": partial(case, "Pendulum-v1", TWO, lambda obs: sb3(gymnasium.make("Pendulum-v1"), "MlpPolicy", obs)),
    "several": partial(case, f"{HERE}:Several", TWO, lambda obs: sb3(Several(), "MlpPolicy", obs)),
    "bits": partial(case, f"{HERE}:Bits", TWO, lambda obs: sb3(Bits(), "MlpPolicy", obs)),
    "structured": partial(case, f"{HERE}:Structured", TWO, None),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    main("predict", __doc__, CASES, repeats=101)
