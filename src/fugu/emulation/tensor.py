"""Environments written as plain torch functions over all worlds at once: they run on a CPU and on a GPU, without a line of C++.

A ``TensorEnv`` has no base class; having these members is enough. n is the number of worlds, all of which it computes at once,
without branches on values and without waiting for the device (``torch.where`` instead of ``if``, no ``.item()``):

    observation_space, action_space       of one agent
    reset(n, uniform)                     -> state: dict of tensors [n, ...], of n new episodes
    step(state, action)                   -> state, reward [n], terminated [n]
    observe(state)                        -> obs [n, ...] (in the structure of the space, if it has parts)

and, where they apply,

    step(state, action, uniform)          chance in a step
    time_limit = 500                      steps after which an episode is truncated
    num_agents = 2                        agents of one world, which start and end together; reward, obs and action are [n, agents, ...]
    action_mask(state)                    -> [n, choices] bool
    log(state)                            -> dict of tensors [n], averaged over the episodes that end
    costs = ("speed",)                    names of what a step costs; step then returns state, reward, terminated, cost [n, costs]
                                          ([n, agents, costs] with several agents)
    columns = {"risk": ((), "float32")}   what else a step says, with the shape of one row; step then returns a dict of it last,
                                          {"risk": [n, ...]} ([n, agents, ...] with several agents)

``uniform(*shape)`` gives random numbers [n, *shape] in [0, 1) on ``uniform.device``: those that a C++ environment with the same seed
would draw. Auto-reset, time limit, statistics and rows are done here, by the convention of ``emulation/env.py``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fugu.emulation.columns import outcomes, own_columns
from fugu.emulation.compiled import compiled
from fugu.emulation.env import EnvSpec, Infos, Rows, discrete_choices
from fugu.errors import ConfigError, SpaceError
from fugu.spaces import Layout
from fugu.spaces.layout import Node
from fugu.spaces.views import TORCH_DTYPES, tensors, write_leaves

GOLDEN, MIX_1, MIX_2 = (x - 2**64 for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""as signed numbers of 64 bits, whose products wrap as unsigned ones do"""


def mix(x: Tensor) -> Tensor:
    """Mix bits as ``Rng::mix`` of native/env.h does, with int64 for uint64."""
    x = (x ^ _shifted(x, 30)) * MIX_1
    x = (x ^ _shifted(x, 27)) * MIX_2
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)


class Uniform:
    """Random numbers by counting, as ``Rng`` of native/env.h: draw k of a world is a hash of its key and k."""

    def __init__(self, key: Tensor, draws: Tensor) -> None:
        self.device = key.device
        self.used = 0
        """draws of each world so far"""
        self._key, self._draws = key, draws

    def __call__(self, *shape: int) -> Tensor:
        count = math.prod(shape)
        index = torch.arange(self.used + 1, self.used + count + 1, device=self.device)
        self.used += count
        bits = _shifted(mix(self._key[:, None] + GOLDEN * (self._draws[:, None] + index)), 40)
        return (bits.float() * 2.0**-24).reshape(len(self._key), *shape)


class After(NamedTuple):
    """All worlds after a step; all of it fresh memory."""

    state: dict[str, Tensor]
    draws: Tensor
    length: Tensor
    ended: Tensor
    returns: Tensor
    costs: Tensor
    """of the running episodes"""
    sums: Tensor
    """of the episodes that ended"""
    rows: dict[str, Tensor]
    """column by column, but for observations"""
    seen: list[Tensor]
    """the leaves of observations. They are put together as bytes outside of what is compiled: inductor lays numbers out as it likes
    and cannot look at them as bytes then"""


class TensorWorlds:
    """``num_envs`` worlds of the ``TensorEnv`` ``env`` on ``device``: rows in, rows out. ``rows`` has the columns of ``DeviceRows``.

    A step is one function from all that there is to all that there will be. With ``compile`` torch makes a few kernels of it
    (``emulation/compiled.py``).
    """

    def __init__(self, env: Any, num_envs: int, device: torch.device, *, compile: bool = False) -> None:
        self._env, self._num_envs, self._agents = env, num_envs, int(getattr(env, "num_agents", 1))
        name = getattr(env, "name", type(env).__name__)
        self.spec = EnvSpec(
            env.observation_space,
            env.action_space,
            self._agents,
            name=name,
            costs=tuple(getattr(env, "costs", ())),
            columns=own_columns(getattr(env, "columns", None), name),
        )
        self.num_choices = discrete_choices(env.action_space) if hasattr(env, "action_mask") else 0
        self._obs_layout, self._action_layout = Layout(env.observation_space), Layout(env.action_space)
        self._time_limit = int(getattr(env, "time_limit", 0) or 0)
        self._step_draws = len(inspect.signature(env.step).parameters) > 2
        self._batch = (num_envs,) if self._agents == 1 else (num_envs, self._agents)
        self._key, self._draws, self._length = (torch.zeros(num_envs, dtype=torch.int64, device=device) for _ in range(3))
        self._ended = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._returns = torch.zeros(self._batch, dtype=torch.float64, device=device)
        self._state = {k: v.clone() for k, v in self._checked(env.reset(num_envs, Uniform(self._key, self._draws))).items()}
        self._log_names = tuple(env.log(self._state)) if hasattr(env, "log") else ()
        self._cost_sums = torch.zeros((*self._batch, len(self.spec.costs)), dtype=torch.float64, device=device)
        self._sums = torch.zeros(3 + len(self._log_names) + len(self.spec.costs), dtype=torch.float64, device=device)
        self._next: Callable[..., After] = self._outcome
        self._compile = compile
        """whether that is still to be done, at the first step"""
        shape, dtype = self._action_layout.row_shape, TORCH_DTYPES[self._action_layout.dtype_name]
        self._action = torch.zeros((num_envs * self._agents, *shape), dtype=dtype, device=device) if compile else None

    @torch.no_grad()
    def reset(self, seeds: Tensor, rows: Any) -> None:
        self._key.copy_(torch.where(seeds < 0, self._key, mix(seeds + GOLDEN)))
        self._draws.mul_(seeds < 0)
        uniform = Uniform(self._key, self._draws)
        fresh = self._checked(self._env.reset(self._num_envs, uniform))
        for name, tensor in self._state.items():
            tensor.copy_(fresh[name])
        self._draws.add_(uniform.used)
        columns = rows.columns
        for tensor in (
            self._length,
            self._ended,
            self._returns,
            self._cost_sums,
            *(columns[name] for name in outcomes(columns)),
        ):
            tensor.zero_()
        columns["first"].fill_(True)
        columns["mask"].fill_(True)
        self._write(self._seen(self._state), columns["obs"])
        if self.num_choices and "action_mask" in columns:
            columns["action_mask"].copy_(self._offered(self._state, columns["mask"]))

    @torch.no_grad()
    def step(self, action: Tensor, rows: Any) -> None:
        if self._action is not None:  # the compiler tells tensors of inference mode from others, and would start over
            action = self._action.copy_(action)
        own = (self._key, self._draws, self._length, self._ended, self._returns, self._cost_sums, self._state)
        if self._compile and not _recording(self._key):
            self._compile = False
            half = torch.arange(self._num_envs, device=self._key.device) % 2 == 0  # where an episode begins
            with torch.autocast(action.device.type, enabled=False):
                self._next = compiled(self._outcome, self.spec.name, *own[:3], half, *own[4:], action)
        with torch.autocast(action.device.type, enabled=False):  # the policy may be in bfloat16, the environment is not
            after = self._next(*own, action)
        self._sums.add_(after.sums)
        columns = rows.columns
        _copy(
            [
                (self._draws, after.draws),
                (self._length, after.length),
                (self._ended, after.ended),
                (self._returns, after.returns),
                (self._cost_sums, after.costs),
                *((tensor, after.state[name]) for name, tensor in self._state.items()),
                *((columns[name], column) for name, column in after.rows.items() if name in columns),
            ]
        )
        self._write(after.seen, columns["obs"])

    def _outcome(
        self,
        key: Tensor,
        draws: Tensor,
        length: Tensor,
        ended: Tensor,
        returns: Tensor,
        costs: Tensor,
        before: dict[str, Tensor],
        action: Tensor,
    ) -> After:
        """Step all worlds and return the outcome, none of which is memory of what was given."""
        begins, on, again = ended, Uniform(key, draws), Uniform(key, draws)
        given = tensors(self._action_layout, action.view(*self._batch, *self._action_layout.row_shape))
        extra = (on,) if self._step_draws else ()
        state = dict(before)
        if torch.compiler.is_compiling():  # an environment that writes into its state must not write into what was given
            state = {name: tensor.clone() for name, tensor in before.items()}
        state, reward, terminated, *more = self._env.step(state, given, *extra)
        if reward.shape != self._batch or terminated.shape != (self._num_envs,) or terminated.dtype != torch.bool:
            raise SpaceError(
                f"{self.spec.name}.step: expected reward {list(self._batch)} and terminated bool[{self._num_envs}], got "
                f"{list(reward.shape)} and {terminated.dtype}{list(terminated.shape)}"
            )
        state, fresh = self._checked(state), self._checked(self._env.reset(self._num_envs, again))
        reward = torch.where(self._per_agent(begins), 0.0, reward.to(torch.float32))
        terminated = terminated & ~begins
        length = (length + 1) * ~begins
        late = length >= self._time_limit if self._time_limit else torch.zeros_like(terminated)
        truncated = late & ~terminated & ~begins
        ended = terminated | truncated
        returns = torch.where(self._per_agent(begins), 0.0, returns + reward)
        said = self._said(more, begins)
        cost = self._charged(more, begins)
        costs = torch.where(self._per_agent(begins)[..., None], 0.0, costs + cost)
        sums = self._episodes(state, ended, returns, costs, length)
        state = {
            name: torch.where(begins.view(-1, *[1] * (tensor.dim() - 1)), fresh[name], state[name]).to(tensor.dtype)
            for name, tensor in before.items()
        }
        flags = {"terminated": terminated, "truncated": truncated, "first": begins, "mask": ~ended}
        rows = {name: self._per_agent(flag).expand(self._batch).reshape(-1).clone() for name, flag in flags.items()}
        rows["reward"] = reward.reshape(-1)
        if self.spec.costs:
            rows["cost"] = cost.reshape(-1, len(self.spec.costs))
        rows |= said
        if self.num_choices:
            rows["action_mask"] = self._offered(state, rows["mask"])
        draws = draws + begins * (again.used - on.used) + on.used
        return After(state, draws, length, ended, returns, costs, sums, rows, self._seen(state))

    def drain(self) -> tuple[int, float, float, dict[str, float]]:
        episodes, returns, lengths, *values = self._sums.cpu().tolist()
        self._sums.zero_()
        return int(episodes), returns, lengths, dict(zip((*self._log_names, *self.spec.costs), values, strict=True))

    def state(self) -> dict[str, Tensor]:
        own = {"key": self._key, "draws": self._draws, "length": self._length, "ended": self._ended, "returns": self._returns}
        if self.spec.costs:
            own["costs"] = self._cost_sums
        return {**own, **{f"state.{name}": tensor for name, tensor in self._state.items()}}

    can_snapshot = True

    def check(self, saved: Mapping[str, Tensor]) -> None:
        """Accept any numbers: torch looks at every index before it uses it."""

    def _episodes(self, state: dict[str, Tensor], ended: Tensor, returns: Tensor, costs: Tensor, length: Tensor) -> Tensor:
        """Sum over the episodes that end: their number, returns and lengths, and what the environment names."""
        values = self._env.log(state) if self._log_names else {}
        columns = [
            ended * float(self._agents),
            torch.where(self._per_agent(ended), returns, 0.0).reshape(self._num_envs, -1).sum(1),
            length * ended * float(self._agents),
            *(torch.where(ended, values[name].double(), 0.0) * self._agents for name in self._log_names),
            *torch.where(ended[:, None], costs.view(self._num_envs, self._agents, len(self.spec.costs)).sum(1), 0.0).unbind(1),
        ]
        return torch.stack([column.double() for column in columns]).sum(1)

    def _charged(self, given: list[Tensor], begins: Tensor) -> Tensor:
        """Return the costs, which ``step`` has returned last: ``[*batch, costs]``, 0 where an episode begins."""
        shape = (*self._batch, len(self.spec.costs))
        if not self.spec.costs:
            return torch.zeros(shape, device=begins.device)
        if len(given) != 1 or given[0].shape != shape:
            got = f"{list(given[0].shape)}" if given else "none"
            raise SpaceError(
                f"{self.spec.name}.step: costs={self.spec.costs} needs state, reward, terminated, cost {list(shape)}; got {got}"
            )
        return torch.where(self._per_agent(begins)[..., None], 0.0, given[0].to(torch.float32))

    def _said(self, given: list[Any], begins: Tensor) -> dict[str, Tensor]:
        """Take the environment's own columns, which ``step`` has returned last, off ``given``: ``[agents, ...]``, 0 where an
        episode begins."""
        if not self.spec.columns:
            return {}
        said = given.pop() if given and isinstance(given[-1], dict) else {}
        if said.keys() != self.spec.columns.keys():
            raise SpaceError(
                f"{self.spec.name}.step: columns={list(self.spec.columns)} needs a dict of them, last; got {list(said) or 'none'}"
            )
        columns = {}
        for name, (shape, dtype) in self.spec.columns.items():
            expected = (*self._batch, *shape)
            if said[name].shape != expected:
                raise SpaceError(f"{self.spec.name}.step: {name!r} must be {list(expected)}, got {list(said[name].shape)}")
            lead = begins.view(-1, *[1] * (len(expected) - 1))
            kept = torch.where(lead, torch.zeros_like(said[name]), said[name])
            columns[name] = kept.to(TORCH_DTYPES[dtype]).reshape(self._num_envs * self._agents, *shape)
        return columns

    def _seen(self, state: dict[str, Tensor]) -> list[Tensor]:
        return _leaves(self._obs_layout.root, self._env.observe(state))

    def _write(self, seen: list[Tensor], obs: Tensor) -> None:
        """Put the leaves of observations together."""
        layout = self._obs_layout
        write_leaves(layout, obs.view(*self._batch, *layout.row_shape), seen)

    def _offered(self, state: dict[str, Tensor], mask: Tensor) -> Tensor:
        offered = self._env.action_mask(state)
        open_ones = offered.view(*self._batch, -1) | ~mask.view(*self._batch, 1)  # a row that does not act: all open
        return open_ones.reshape(self._num_envs * self._agents, self.num_choices)

    def _per_agent(self, flag: Tensor) -> Tensor:
        return flag if self._agents == 1 else flag[:, None]

    def _checked(self, state: Any) -> dict[str, Tensor]:
        bad = [name for name, tensor in state.items() if tensor.shape[:1] != (self._num_envs,)]
        if bad:
            raise SpaceError(
                f"{self.spec.name}: state {bad[0]!r} must be a tensor [{self._num_envs}, ...], one entry per world, got "
                f"{list(state[bad[0]].shape)}"
            )
        return dict(state)


class TensorWorld:
    """One world of a ``TensorEnv`` as a ``fugu.Env``, for the backends that step environments one by one."""

    def __init__(self, env: Any) -> None:
        self._worlds = TensorWorlds(env, 1, torch.device("cpu"))
        self.observation_space, self.action_space = env.observation_space, env.action_space
        spec = self._worlds.spec
        self.num_agents, self.name, self.costs, self.columns = spec.num_agents, spec.name, spec.costs, spec.columns
        self._seeded = False

    def reset(self, seed: int | None, out: Rows) -> Infos | None:
        if seed is None:
            seed = -1 if self._seeded else int(np.random.default_rng().integers(2**63 - 1))
        self._seeded = True
        self._worlds.reset(torch.tensor([seed]), RowTensors(out))
        return None

    def step(self, action: np.ndarray, out: Rows) -> Infos | None:
        self._worlds.step(torch.from_numpy(np.ascontiguousarray(action)), RowTensors(out))
        return None

    def close(self) -> None: ...


class RowTensors:
    """The arrays of ``Rows`` as tensors over the same memory."""

    def __init__(self, rows: Rows) -> None:
        self.columns = {name: torch.from_numpy(column) for name, column in rows.columns.items()}


def _recording(tensor: Tensor) -> bool:
    """Return True if what is done to it now goes into a CUDA graph: nothing can be compiled meanwhile."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy each second to the first; on a GPU in one launch for all of a dtype."""
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for to, source in pairs:
        targets, sources = kinds.setdefault(to.dtype, ([], []))
        targets.append(to)
        sources.append(source)
    for targets, sources in kinds.values():
        torch._foreach_copy_(targets, sources)


def _leaves(node: Node, value: Any) -> list[Tensor]:
    """Return the tensors of ``value``, which has the structure of a space, in the order of its leaves."""
    if not node.children:
        return [value]
    if len(value) != len(node.children):
        raise ConfigError(f"observe: expected the parts {list(node.keys)}, got {len(value)} parts")
    return [leaf for key, child in zip(node.keys, node.children, strict=True) for leaf in _leaves(child, value[key])]
