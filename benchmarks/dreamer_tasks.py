"""Tasks that Dreamer is measured on, and Dreamers that lack a part, to see what it brings."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from fugu.algorithm.dreamer import Arrived, Dreamer
from fugu.algorithm.parts.imagined import lambda_returns, value_loss
from fugu.policy.world import Believed

# --- environments ---


class NoVelocity(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole-v1 of which only positions are seen: how fast things move has to be remembered."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        whole = self.env.observation_space
        assert isinstance(whole, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(whole.low[[0, 2]], whole.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


class TMaze(gymnasium.Env[np.ndarray, np.int64]):
    """The first row shows a sign, -1 or 1; after ``length`` rows of a corridor the side that fits it pays 1, the other nothing. Who
    does not remember gets 0.5."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._at = self._sign = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._sign = 0, int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        ends = self._at == self.length
        self._at += 1
        return self._seen(), float(ends and action == self._sign), ends, False, {}

    def _seen(self) -> np.ndarray:
        sign = 2 * self._sign - 1 if self._at == 0 else 0
        return np.array([sign, self._at == self.length, min(1.0, self._at / self.length)], np.float32)


class Catch(gymnasium.Env[np.ndarray, np.int64]):
    """A ball falls through a picture of 64 x 64; a paddle below moves left, not at all, or right. Pays 1 if it catches the ball, -1
    if not. Who plays at random gets about -0.6."""

    SIDE, BALL, PADDLE, ROWS = 64, 6, 12, 12

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (self.SIDE, self.SIDE, 1), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._row = self._ball = self._paddle = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = 0
        self._ball = int(self.np_random.integers(self.SIDE - self.BALL + 1))
        self._paddle = int(self.np_random.integers(self.SIDE - self.PADDLE + 1))
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._paddle = int(np.clip(self._paddle + 5 * (int(action) - 1), 0, self.SIDE - self.PADDLE))
        self._row += 1
        ends = self._row == self.ROWS - 1
        caught = self._paddle < self._ball + self.BALL and self._ball < self._paddle + self.PADDLE
        return self._seen(), (1.0 if caught else -1.0) if ends else 0.0, ends, False, {}

    def _seen(self) -> np.ndarray:
        picture = np.zeros((self.SIDE, self.SIDE, 1), np.uint8)
        top = self._row * (self.SIDE - self.BALL) // (self.ROWS - 1)
        picture[top : top + self.BALL, self._ball : self._ball + self.BALL] = 255
        picture[-3:, self._paddle : self._paddle + self.PADDLE] = 128
        return picture


class Control(gymnasium.Env[np.ndarray, np.ndarray]):
    """A task of dm_control by its numbers: two frames to a step, cut off after a thousand frames. Needs the package dm_control."""

    def __init__(self, domain: str, task: str) -> None:
        from dm_control import suite

        self._make = lambda seed: suite.load(domain, task, task_kwargs={"random": seed})
        self._env = self._make(0)
        spec = self._env.action_spec()
        bounds = spec.minimum.astype(np.float32), spec.maximum.astype(np.float32)
        self.action_space = gymnasium.spaces.Box(*bounds, dtype=np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self._seen(self._env.reset()).shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._env = self._make(seed % 2**31)
        return self._seen(self._env.reset()), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        for _ in range(2):
            found = self._env.step(action)
            reward += found.reward or 0.0
            if found.last():
                break
        return self._seen(found), reward, False, found.last(), {}

    def _seen(self, found: Any) -> np.ndarray:
        return np.concatenate([np.ravel(value) for value in found.observation.values()]).astype(np.float32)


# --- Dreamers without a part ---


class NoMemory(Dreamer):
    """Every row counts as the first of its episode."""

    def act(self, seen: Any) -> Any:
        return super().act(dataclasses.replace(seen, first=torch.ones_like(seen.first)))

    def _observe(self, batch: Any, rows: Arrived) -> tuple[Believed, list[Tensor]]:
        return super()._observe(batch, dataclasses.replace(rows, first=torch.ones_like(rows.first)))


class NoImagination(Dreamer):
    """Actor and critic learn from replayed rows alone, in the states that the model gives them."""

    def _behaviour(self, states: Believed, rows: Arrived) -> tuple[Tensor, dict[str, Tensor]]:
        world, c = self.policy, self.config
        features = states.features.detach()
        goes_on = c.gamma * (1 - rows.terminated.float())
        logits, value, slow = self._judged(features)
        with torch.no_grad():
            returns = lambda_returns(rows.reward, value, goes_on, c.lam * (1 - rows.last.float()))
            self.scale.update(returns)
            advantage = (returns - value[:-1]) / self.scale()
        mask = None if rows.action_mask is None else rows.action_mask[:-1]
        logprob, entropy = world.distribution.evaluate(world.params(features[:-1], mask), self._played, mask)
        weight = rows.acted / rows.acted.sum().clamp(min=1)
        policy = -(weight * (logprob * advantage + c.entropy * entropy)).sum()
        critic = (weight * value_loss(world.two_hot, logits, slow, returns)).sum()
        found = {"policy": policy, "value": critic, "entropy": (weight * entropy).sum(), "return": returns.mean()}
        found["return_scale"] = self.scale()
        return policy + critic, {f"loss/{name}": number.detach() for name, number in found.items()}

    def _observe(self, batch: Any, rows: Arrived) -> tuple[Believed, list[Tensor]]:
        self._played = batch["action"].transpose(0, 1)[: len(rows.acted)]
        return super()._observe(batch, rows)


class UntrainedModel(Dreamer):
    """The model stays as it was made: actor and critic learn in a world that knows nothing."""

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        with _frozen(self.policy, but=self.policy.actor):
            loss, metrics = super().loss(batch)
        return loss, metrics


CONTROLS = {"memory": NoMemory, "imagination": NoImagination, "model": UntrainedModel}


@contextlib.contextmanager
def _frozen(module: torch.nn.Module, *, but: torch.nn.Module) -> Iterator[None]:
    kept = set(map(id, but.parameters()))
    frozen = [p for p in module.parameters() if id(p) not in kept and p.requires_grad]
    for p in frozen:
        p.requires_grad = False
    try:
        yield
    finally:
        for p in frozen:
            p.requires_grad = True
