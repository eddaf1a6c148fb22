"""A trained policy as an object: observations in, actions out, in the environment's own form. No environment is started.

``policy(obs)`` returns an action and keeps the memory of a recurrent network until ``reset()``. ``policy.predict`` takes and returns it
instead, as Stable-Baselines3's ``predict`` does. Both take one observation, a batch (``spaces/values.py`` says what is one), or the
observations of a team by the names of its agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fugu.config import fitting
from fugu.errors import CallOrderError, ConfigError, SpaceError
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.central import Actors
from fugu.policy.shown import ActionDistribution
from fugu.policy.world import World
from fugu.rollout.acting import Act, Carry, Seen, forms_of
from fugu.rollout.envs import OneEnv, untouched
from fugu.run import restore
from fugu.run.observed import Observed, Reader
from fugu.run.quick import quick_of
from fugu.run.run import Run
from fugu.trainer import checkpoint
from fugu.trainer.build import find_device

State = tuple[np.ndarray, ...]
"""the memory of a recurrent policy: arrays with one row per observation, or per agent of a team"""


def load(
    run: str | Path = "latest",
    which: str | int = "latest",
    *,
    runs: str | Path = "runs",
    device: str = "cpu",
    env: Any = None,
    policy: Any = None,
    algorithm: Any = None,
    trust_code: bool = False,
) -> Policy:
    """Load the policy of ``run``: a name in the folder ``runs``, a path, ``latest``, ``latest~1``, or the folder of a checkpoint.

    ``which`` is the checkpoint: ``latest``, ``best`` or its step. ``env``, ``policy`` and ``algorithm`` take the place of what the run
    names, as those of ``Run``. ``trust_code``: the code that a run names which was not made here may be executed.
    """
    found, path = restore.find(run, which, runs, env=env, policy=policy, algorithm=algorithm, trust_code=trust_code)
    return Policy(found, path, device=device)


class Policy:
    """The policy in the checkpoint at ``path``, of ``run``. For one thread at a time."""

    def __init__(self, run: Run, path: Path, *, device: str = "cpu") -> None:
        self.run, self.path = run, path
        self.device = find_device(device)
        saved = checkpoint.load(path)
        self.step = saved.step
        """steps of training after which it was saved"""
        self.spec = restore.env_of(run, saved)
        """what is known of the environment: its spaces, agents and costs"""
        self.observation_space, self.action_space = self.spec.observation_space, self.spec.action_space
        self.agents = self.spec.agents
        """names of the agents; empty where they have none"""
        self.algorithm = restore.restored(run.config, OneEnv(self.spec), self.device, saved).requires_grad_(False)
        self.network = self.algorithm.policy
        self._reader = Reader(self.spec)
        self._generator = torch.Generator(self.device).manual_seed(1)
        self._memory: Carry | None = None
        self._started: np.ndarray | None = None
        """which rows of the memory have begun an episode"""
        self._rows: np.ndarray | None = None
        """the observations last seen of a team's agents"""
        self._quick = quick_of(self.algorithm, self._reader, self.device)

    # --- acting ---

    def __call__(self, obs: Any, action_mask: Any = None, *, reward: Any = None, deterministic: bool = True) -> Any:
        """Return the action on ``obs``. ``action_mask`` says which choices are allowed; ``deterministic`` takes the most probable
        action instead of drawing one. ``reward`` is what the action before brought, one number or one per observation: a Decision
        Transformer needs it.

        A recurrent policy remembers what it saw before, until ``reset()``.
        """
        if self._quick is not None and deterministic and action_mask is None:
            found, self._memory = self._quick(obs, self._memory)
            if found is not None:
                return found
        given = self._reader.read(obs, action_mask)
        if not len(given.rows):
            return self._reader.nothing(given)
        if self._forgetful:
            return self._reader.shown(self._act(given, None, given.here, deterministic).env_action, given)
        rows, first = self._continued(given)
        acted = self._act(given.with_rows(rows), self._memory, first, deterministic, reward=reward)
        self._memory, self._rows = acted.carry, rows
        assert self._started is not None
        self._started |= given.here
        return self._reader.shown(acted.env_action, given)

    def reset(self, ended: Any = None) -> None:
        """Forget what was seen: the next observation is the first of an episode. ``ended`` says of which rows of a batch."""
        over = np.ones(1, bool) if ended is None else np.asarray(ended, bool).reshape(-1)
        count = 1 if self._started is None else len(self._started)  # kept by the short way, it is that of one observation
        if ended is not None and self._memory is not None and len(over) != count:
            raise SpaceError(f"expected {count} flags, got {len(over)}", where="ended")
        if over.all():
            self._memory = self._started = self._rows = None
        elif self._started is not None:
            self._started &= ~over

    def predict(
        self,
        obs: Any,
        state: State | None = None,
        episode_start: Any = None,
        action_mask: Any = None,
        deterministic: bool = True,
        reward: Any = None,
    ) -> tuple[Any, State | None]:
        """Return the action on ``obs`` and the memory after it, and keep nothing.

        ``state`` is the memory that the call before returned, None at the start. ``episode_start`` says which rows are the first of
        an episode; by default all are if ``state`` is None, else none.
        """
        if self._quick is not None and deterministic and action_mask is None and state is None and self._forgetful:
            found, _ = self._quick(obs, None)
            if found is not None:
                return found, None
        given = self._reader.read(obs, action_mask)
        if not len(given.rows):
            return self._reader.nothing(given), state
        first = given.starts(episode_start, state is None)
        acted = self._act(given, self._carry(state, given), first, deterministic, reward=reward)
        after = None if acted.carry is None else tuple(acted.carry[name].cpu().numpy().copy() for name in self._forms)
        return self._reader.shown(acted.env_action, given), after

    def seed(self, seed: int) -> None:
        """Seed the draws of ``deterministic=False`` and of ``distribution(obs).sample()``."""
        self._generator.manual_seed(fitting("seed", seed, int, 0))

    # --- looking into it ---

    def value(self, obs: Any, state: State | None = None, episode_start: Any = None, action_mask: Any = None) -> Any:
        """Return the value of ``obs``: the return that the critic expects, in the units of the rewards it was trained on.

        Without ``state`` a recurrent policy looks at ``obs`` with the memory it keeps, which stays as it is.
        """
        given = self._reader.read(obs, action_mask)
        carry, first = self._looked(given, state, episode_start)
        scratch = torch.Generator(self.device)  # an act that gives values draws an action as well
        with untouched(self.algorithm):
            value = self._act(given, carry, first, False, scratch).columns.get("value")
        if not isinstance(value, Tensor) or value.shape != (len(given.rows),):
            raise ConfigError(
                f"{self.run.config.algorithm} learns no values of observations; those of ppo and its kin have them"
            )
        return given.numbers(value.cpu().numpy())

    def distribution(self, obs: Any, state: State | None = None, episode_start: Any = None, action_mask: Any = None) -> Any:
        """Return the distribution of actions on ``obs`` (``ActionDistribution``), of a team one per agent by name."""
        network = self.network
        if not isinstance(network, ActorCritic | Actors | World):
            raise ConfigError(
                f"a {type(network).__name__} has no distribution to show: it makes its choices one after the other; "
                "predict(obs, deterministic=False) draws from it"
            )
        given = self._reader.read(obs, action_mask)
        self._check_team(given)
        carry, first = self._looked(given, state, episode_start)
        with torch.inference_mode():
            if isinstance(network, World):
                params = self.algorithm.params(self._seen(given, carry, first, True))  # type: ignore[operator]
            else:
                memory = None if carry is None else carry.get("state")
                params = network(self._tensor(given.rows), memory, self._tensor(first)).params
        mask = None if given.action_mask is None else self._tensor(given.action_mask)

        def shown(rows: slice, single: bool) -> ActionDistribution:
            allowed = None if mask is None else mask[rows]
            parts = (network.distribution, params[rows], allowed, self._reader.actions, self._generator)
            return ActionDistribution(*parts, single=single)

        if given.names is None:
            return shown(slice(None), given.single)
        return {name: shown(slice(i, i + 1), True) for i, name in given.names}

    # --- inside ---

    def _act(
        self,
        given: Observed,
        carry: Carry | None,
        first: np.ndarray,
        greedy: bool,
        generator: torch.Generator | None = None,
        reward: Any = None,
    ) -> Act:
        self._check_team(given)
        seen = self._seen(given, carry, first, greedy, generator)
        if reward is not None:
            numbers = np.broadcast_to(np.asarray(reward, np.float32), (len(given.rows),))
            seen.reward = self._tensor(numbers.copy())
        with torch.inference_mode():
            return self.algorithm.act(seen)

    def _seen(
        self, given: Observed, carry: Carry | None, first: np.ndarray, greedy: bool, generator: torch.Generator | None = None
    ) -> Seen:
        return Seen(
            self._tensor(given.rows),
            self._tensor(first),
            mask=self._tensor(given.here),
            action_mask=None if given.action_mask is None else self._tensor(given.action_mask),
            carry=carry,
            greedy=greedy,
            generator=generator or self._generator,
        )

    def _tensor(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(rows).to(self.device)

    def _check_team(self, given: Observed) -> None:
        """Refuse single agents where each has a network or a name of its own."""
        team = self.network.agents if isinstance(self.network, Actors) else 1
        if len(given.rows) % team:
            by_name = f", or by name: {{{self.agents[0]!r}: obs, ...}}" if self.agents else ""
            raise SpaceError(
                f"{self.run.config.algorithm} acts for the {team} agents of an environment together, got {len(given.rows)} rows",
                where="observation",
                fix=f"Give the observations of all of them, in their order{by_name}",
            )

    @cached_property
    def _forms(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return the form of the memory by name, in the order of a state, as the policy says it on rows of zeros."""
        rows, here = self._reader.observations.layout.zeros(self.spec.num_agents), np.ones(self.spec.num_agents, bool)
        with untouched(self.algorithm):
            return dict(sorted(forms_of(self._act(Observed(rows, False, here), None, here, True).carry).items()))

    @cached_property
    def _forgetful(self) -> bool:
        """Return True if the policy has no memory."""
        return not self._forms

    def _carry(self, state: State | None, given: Observed) -> Carry | None:
        """Return a state as the policy's own memory."""
        if state is None or self._forgetful:
            return None
        arrays: Sequence[Any] = state if isinstance(state, tuple | list) else [state]
        forms, rows = self._forms, len(given.rows)
        expected = [(rows, *shape) for shape, _ in forms.values()]
        if [np.shape(array) for array in arrays] != expected:
            raise SpaceError(
                f"expected arrays of the shapes {expected}, got {[np.shape(array) for array in arrays]}",
                where="state",
                fix="Give what predict() returned for as many observations, or None at the start",
            )
        named = zip(forms.items(), arrays, strict=True)
        return {name: torch.as_tensor(array, dtype=dtype, device=self.device) for (name, (_, dtype)), array in named}

    def _continued(self, given: Observed) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows to act on and which are the first of an episode. Agents of a team that are not there show what they last
        saw, as in training."""
        rows = given.rows
        if self._started is None or self._memory is None:
            if self._memory is not None:  # kept by the short way: of one observation, which has begun
                self._started = np.ones(1, bool)
            else:
                self._started = np.zeros(len(rows), bool)
        if len(self._started) != len(rows):
            raise CallOrderError(
                f"the memory is that of {len(self._started)} observations, got {len(rows)}",
                fix="reset() before another number of them, or predict() with states of your own",
            )
        if given.names is not None and self._rows is not None:
            rows = np.where(given.here.reshape(-1, *(1,) * (rows.ndim - 1)), rows, self._rows)
        return rows, given.here & ~self._started

    def _looked(self, given: Observed, state: State | None, episode_start: Any) -> tuple[Carry | None, np.ndarray]:
        """Return memory and first rows for looking at observations without acting on them."""
        fits = self._memory is not None and all(len(part) == len(given.rows) for part in self._memory.values())
        if state is None and episode_start is None and fits and not self._forgetful:
            started = self._started if self._started is not None else np.ones(len(given.rows), bool)
            return self._memory, given.here & ~started
        return self._carry(state, given), given.starts(episode_start, state is None)

    def __repr__(self) -> str:
        return f"Policy({str(self.path)!r}, {self.observation_space} -> {self.action_space})"
