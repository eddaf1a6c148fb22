"""The environments of a run as an algorithm sees them, which asks here for the kind of source it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from fugu.emulation.env import EnvSpec
from fugu.errors import ConfigError
from fugu.ranks import ALONE
from fugu.rollout.acting import Act, Acts, Forms, Seen, forms_of, generators
from fugu.rollout.ahead import Ahead
from fugu.rollout.config import DataConfig, ReplayConfig
from fugu.rollout.device import DeviceRollout, Whole
from fugu.rollout.episodes import Episodes, Groups
from fugu.rollout.feed import Feed
from fugu.rollout.onpolicy import OnPolicy
from fugu.rollout.room import check_batches
from fugu.rollout.source import Clock, Source
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.device import DeviceVec
from fugu.vector.device_native import NativeDevice
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
    from fugu.data import DataSet
    from fugu.rollout.dataset import Dataset


class Acting(Protocol):
    """A module that acts."""

    def act(self, seen: Seen) -> Act: ...


class OneEnv:
    """The agents of one environment that is not there."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec, self.num_agents = spec, spec.num_agents
        self.observation_space, self.action_space = spec.observation_space, spec.action_space
        self.obs_layout, self.action_layout = spec.obs_layout, spec.action_layout
        self.env_agents = [slice(0, spec.num_agents)]

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


@dataclass(frozen=True, kw_only=True)
class Envs:
    vec: VecEnv | DeviceVec | OneEnv
    data: DataSet | None = None
    """recorded episodes in the place of environments"""
    horizon: int
    passes: int = 1
    minibatch: int | None = None
    """rows of a gradient step; None: the whole batch"""
    device: torch.device
    """device that the policy acts on"""
    clock: Clock | None = None
    name: str = "the algorithm"
    """owner of the environments, for errors"""
    whole: Whole | None = None
    """function that plays a whole horizon in one kernel, if there is one for this policy and these environments"""
    overlap: bool = False
    """play the next batch while the one before it is learned from"""
    fleet: Callable[[Acting], Source] | None = None
    """function that returns the source of an algorithm whose environments are on nodes of a cluster, which play by themselves"""

    def recorded(self, algorithm: nn.Module, config: DataConfig, *, best: float = 1.0, to_go: bool = False) -> Dataset:
        """Return a source that draws segments of ``horizon`` rows from recorded episodes. ``best``: share of the episodes, by their
        returns, that it draws from. ``to_go``: segments have ``time`` and ``to_go``."""
        from fugu.rollout.dataset import Dataset, highest  # of no use to others

        if self.data is None:
            raise ConfigError(
                f"{self.name} learns from recorded episodes, and there are none; type fugu train FILE --algorithm {self.name}, with "
                "what fugu record wrote, or --data.path FILE"
            )
        return Dataset(
            highest(self.data, best),
            horizon=self.horizon,
            minibatch=self.minibatch,
            together=config.together,
            to_go=to_go,
            device=self.device,
            ranks=getattr(algorithm, "ranks", ALONE),
        )

    def on_policy(self, algorithm: Acting) -> Source:
        """Return a source of segments: environments on the device, on the CPU for a policy on a GPU, or both on the CPU; or nodes of a
        cluster that have both."""
        if self.fleet is not None:
            return self.fleet(algorithm)
        done = self.tried(algorithm)
        acted = forms_of(done.columns)
        return self._ahead(self._played(acted, forms_of(done.carry), self.horizon, self.passes), algorithm, acted)

    def replay(self, algorithm: Acting, config: ReplayConfig) -> Source:
        """Return a source that keeps what was played, and draws segments of ``horizon`` rows from it."""
        from fugu.rollout.replay import BEFORE, Replay, keeping  # of no use to others

        if isinstance(self.vec, OneEnv):
            raise ConfigError(f"{self.name} plays environments, and recorded episodes have none")
        if self.fleet is not None:
            raise ConfigError(
                f"rollout.nodes: {self.name} learns from each row as it comes, and nodes send whole segments; let the cluster step its "
                "environments: --vector.backend ray --vector.nodes 2"
            )
        done = self.tried(algorithm)
        acted, carry = forms_of(done.columns), forms_of(done.carry)
        data = None
        if config.data:
            from fugu.data import open

            data = open(config.data)
            data.require(self.vec.spec)
        kept = {**acted, **{BEFORE + name: form for name, form in carry.items()}}
        check_batches(self.vec, config, self.minibatch, kept, self.device)
        played = self._played(kept, carry, config.every, 1)
        return Replay(
            self._ahead(played, algorithm, kept, lambda module: keeping(module.act, carry)),
            config,
            horizon=self.horizon,
            minibatch=self.minibatch,
            acted=acted,
            carry=carry,
            data=data,
            ranks=getattr(algorithm, "ranks", ALONE),
        )

    def _ahead(
        self, source: Source, algorithm: Acting, acted: Forms, act: Callable[[Any], Acts] = lambda module: module.act
    ) -> Source:
        """Return ``source``, played ahead of learning if that is asked for."""
        if not self.overlap:
            return source
        assert isinstance(algorithm, nn.Module)
        return Ahead(source, algorithm, act=act, acted=acted, clock=self.clock)

    def _played(self, columns: Forms, carry: Forms, horizon: int, passes: int) -> Source:
        if isinstance(self.vec, OneEnv):
            raise ConfigError(f"{self.name} plays environments, and recorded episodes have none")
        if isinstance(self.vec, DeviceVec):
            if self.overlap:
                raise ConfigError(
                    f"--overlap: environments on {self.device} are played where the policy learns, so that nothing is left to overlap; "
                    "leave it out"
                )
            return DeviceRollout(self.vec, horizon, columns, carry=carry, whole=self.whole)
        if self.device.type == "cuda" and passes == 1 and not self.overlap:
            return Feed(self.vec, horizon, columns, carry=carry, device=self.device, clock=self.clock)
        return OnPolicy(self.vec, horizon, passes=passes, carry=carry, device=self.device, clock=self._clock_of_source)

    def episodes(self, algorithm: Acting, groups: Groups) -> Source:
        """Return a source of whole episodes in groups that begin alike."""
        if isinstance(self.vec, OneEnv):
            raise ConfigError(f"{self.name} plays environments, and recorded episodes have none")
        if isinstance(self.vec, DeviceVec):
            native = isinstance(self.vec.worlds, NativeDevice)
            raise ConfigError(
                f"{self.name} starts episodes together, which environments on {self.device} do not; keep them on the CPU: "
                f"--vector.backend {'native' if native else 'serial'}"
            )
        if self.passes > 1:
            raise ConfigError(
                f"passes={self.passes}: {self.name} takes one episode of each environment; try --vector.num-envs "
                f"{self.passes * self.vec.num_envs} --passes 1"
            )
        if self.fleet is not None:
            return self.fleet(algorithm)
        done = self.tried(algorithm)
        carry = forms_of(done.carry)
        played = Episodes(self.vec, self.horizon, groups, carry=carry, device=self.device, clock=self._clock_of_source)
        return self._ahead(played, algorithm, forms_of(done.columns))

    @property
    def _clock_of_source(self) -> Clock | None:
        """Return the clock of what plays; None in a thread: a clock is for one."""
        return None if self.overlap else self.clock

    def tried(self, algorithm: Acting) -> Act:
        """Let ``algorithm`` act once on rows of zeros, to see which columns and carry it has. Leaves no trace in it."""
        with untouched(algorithm), torch.no_grad():
            return algorithm.act(blank(self.vec, self.device))


def blank(vec: VecEnv | DeviceVec | OneEnv, device: torch.device, worlds: int = 1) -> Seen:
    """Return the first rows of ``worlds`` worlds, with observations of zeros."""
    rows = vec.env_agents[0].stop * worlds
    layout = vec.obs_layout

    def zeros(*shape: int, dtype: torch.dtype = torch.bool) -> Tensor:
        return torch.zeros((rows, *shape), dtype=dtype, device=device)

    return Seen(
        zeros(*layout.row_shape, dtype=TORCH_DTYPES[layout.dtype_name]),
        torch.ones_like(zeros()),
        zeros(dtype=torch.float32),
        torch.ones_like(zeros()),
        training=True,
    )


@contextmanager
def untouched(module: Any) -> Iterator[None]:
    """Draw random numbers inside without any effect: the module's generators and torch's own go on as before."""
    own = generators(module) if isinstance(module, nn.Module) else {}
    states = {name: generator.get_state() for name, generator in own.items()}
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for name, state in states.items():
            own[name].set_state(state)
