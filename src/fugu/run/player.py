"""A trained policy with environments to play in: for evaluating, for videos and for watching."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from fugu.config import fitting
from fugu.emulation.env import Rows
from fugu.errors import ConfigError
from fugu.rollout.acting import Carry
from fugu.rollout.batch import seen_of
from fugu.run.origin import refuse_other_spaces
from fugu.run.restore import restored
from fugu.run.run import Run
from fugu.run.scene import Scene, drawn
from fugu.trainer import checkpoint
from fugu.trainer.build import find_device, make_vec
from fugu.trainer.config import TrainConfig
from fugu.trainer.evaluate import Evaluation, evaluate


@runtime_checkable
class Asked(Protocol):
    """An algorithm whose policy can be asked for a return."""

    def ask(self, target: float) -> None: ...


def config_to_play(
    run: Run,
    *,
    num_envs: int,
    seed: int,
    env_kwargs: Mapping[str, Any] | None = None,
    vectors: Mapping[str, Any] | None = None,
) -> TrainConfig:
    """Return the config of ``run`` for ``num_envs`` environments to play in, with settings that differ from the run's."""
    run.gate.check_links()
    changes = {"num_envs": num_envs, "batch_size": None, "num_workers": None, "compile": None, **(vectors or {})}
    vector = dataclasses.replace(run.config.vector, **changes)
    settings = {**run.config.env_kwargs, **fitting("env_kwargs", env_kwargs or {}, Mapping[str, Any])}
    # the seed of this config is that of the actions drawn; the weights come from the checkpoint
    return dataclasses.replace(run.config, vector=vector, minibatch=None, env_kwargs=settings, seed=seed)


class Player:
    """The checkpoint ``which`` of ``run`` (``latest``, ``best`` or its step), and ``num_envs`` environments of its kind.

    ``seed`` decides what the environments do and which actions are drawn. ``render``: make the environments so that they can be
    drawn. ``env_kwargs`` are settings of the environment that differ from the run's, ``vectors`` of the vector env.
    """

    def __init__(
        self,
        run: Run,
        which: str | int = "latest",
        *,
        num_envs: int = 1,
        seed: int = 1,
        device: str | None = None,
        render: bool = False,
        env_kwargs: Mapping[str, Any] | None = None,
        vectors: Mapping[str, Any] | None = None,
    ) -> None:
        self.carried: Carry | None = None
        config = config_to_play(run, num_envs=num_envs, seed=seed, env_kwargs=env_kwargs, vectors=vectors)
        settings = config.env_kwargs
        self.config, self.seed = config, seed
        self.device = find_device(device or "cpu")
        path = checkpoint.find(run.folder.checkpoints, which)
        if render:
            self.vec = drawn(config.env, settings, lambda kwargs: make_vec(dataclasses.replace(config, env_kwargs=kwargs)))
        else:
            self.vec = make_vec(config)
        try:
            if "env" in run.given:
                refuse_other_spaces(run.folder, self.vec)
            saved = checkpoint.load(path)
            self.algorithm = restored(config, self.vec, self.device, saved)
            self.policy, self.step = self.algorithm.policy, saved.step
        except BaseException:
            self.vec.close()
            raise

    def ask(self, target: float) -> None:
        """Ask the policy for this return from now on."""
        if not isinstance(self.algorithm, Asked):
            raise ConfigError(
                f"{self.config.algorithm} cannot be asked for a return; a Decision Transformer can: --algorithm dt"
            )
        self.algorithm.ask(target)

    def evaluate(self, episodes: int, *, greedy: bool = False) -> Evaluation:
        return evaluate(
            self.vec,
            self.algorithm.act,
            episodes=episodes,
            seed=self.seed,
            greedy=greedy,
            device=self.device,
        )

    def play(self, *, greedy: bool = False) -> Iterator[Scene]:
        """Yield the environment after the reset and after every step, episode after episode, without end. ``self.carried`` is what the
        policy took along from the row before; None at the start."""
        self.carried = None
        carry, generator = None, torch.Generator(self.device).manual_seed(self.seed)
        scene = Scene(self.vec, self.seed)
        while True:
            yield scene
            seen = seen_of(self.vec.rows, carry, self.device, training=False)
            seen.greedy, seen.generator = greedy, generator
            with torch.no_grad():
                acted = self.algorithm.act(seen)
            carry = self.carried = acted.carry
            scene.step(acted.env_action.cpu().numpy())

    def acts(self, *, greedy: bool = False) -> Callable[[Rows], np.ndarray]:
        """Return a function from the rows that wait to actions, which keeps what the policy takes along."""
        carry, generator = None, torch.Generator(self.device).manual_seed(self.seed)

        def act(rows: Rows) -> np.ndarray:
            nonlocal carry
            seen = seen_of(rows, carry, self.device, training=False)
            seen.greedy, seen.generator = greedy, generator
            with torch.no_grad():
                acted = self.algorithm.act(seen)
            carry = acted.carry
            return acted.env_action.cpu().numpy()

        return act

    def __enter__(self) -> Player:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.vec.close()
