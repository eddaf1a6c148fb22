"""The parts an algorithm is made from: the spaces it acts in, its network and settings, and the device it computes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from gymnasium import spaces as gs
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fugu.emulation.env import EnvSpec
from fugu.errors import ConfigError
from fugu.policy.actor_critic import ActorCritic, make_policy
from fugu.policy.config import PolicyConfig
from fugu.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from fugu.policy.transformer import Transformer

Made = TypeVar("Made")
Net = TypeVar("Net", bound=nn.Module)


class Agents(Protocol):
    """The agents that act: those of a ``VecEnv``, of a ``DeviceVec``, or of a data set."""

    spec: EnvSpec
    num_agents: int
    observation_space: gs.Space
    action_space: gs.Space

    @property
    def env_agents(self) -> Any:
        """The agents of each environment, as slices."""


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Seeds of a run, by what is drawn with them. Those marked ``apart`` differ between ranks; the others are the same on all
    ranks."""

    run: int
    ranks: Ranks = ALONE

    @property
    def weights(self) -> int:
        return self.run

    @property
    def critic(self) -> int:
        """weights of a critic that is a separate network"""
        return self.run + 1

    @property
    def act(self) -> int:
        """actions; apart"""
        return self.ranks.seed(self.run)

    @property
    def minibatches(self) -> int:
        """order of minibatches; apart"""
        return self.ranks.seed(self.run + 1)

    @property
    def draws(self) -> int:
        """choice of opponents; apart"""
        return self.ranks.seed(self.run + 2)

    @property
    def envs(self) -> int:
        """environments at the start; apart"""
        return self.ranks.seed(self.run)

    def restart(self, steps: int) -> int:
        """environments that are started anew after ``steps`` steps; apart"""
        return self.ranks.seed(self.run + steps + 1)


@dataclass(frozen=True, kw_only=True)
class Setup:
    envs: Agents
    """agents whose observations and actions the algorithm handles"""
    settings: Any
    """settings of the algorithm, as its ``Config``; None if it has none"""
    net: PolicyConfig
    """settings of the network that maps observations to actions"""
    device: torch.device
    seeds: Seeds
    ranks: Ranks = ALONE
    horizon: int = 1
    """rows of a segment"""
    half: bool = False
    """networks compute in bfloat16"""
    weights_of: Callable[[str], Mapping[str, Tensor]] | None = None
    """function that reads the newest policy of another run"""
    ready: Callable[[nn.Module], None] = field(default=lambda policy: None)
    """called with a policy that is ready to learn, which may first be taught from examples"""

    def policy(self) -> ActorCritic:
        """Make the network that the config describes, with actions and values."""
        spaces = self.envs.observation_space, self.envs.action_space
        return self.finished(seeded(self.seeds.weights, lambda: make_policy(*spaces, self.net)))

    def chooser(self) -> ActorCritic | Transformer:
        """Make the same for an algorithm that needs no values: it may also be a transformer."""
        if self.net.net != "transformer":
            return self.policy()
        from fugu.policy.transformer import Transformer

        spaces = self.envs.observation_space, self.envs.action_space
        return self.finished(seeded(self.seeds.weights, lambda: Transformer(*spaces, self.net)))

    def finished(self, policy: Net) -> Net:
        """Give a new policy the weights it begins with, and move it to its device."""
        if self.net.start is not None:
            load_weights(policy, self.net.start)
        policy = self.placed(policy)
        self.ready(policy)
        return policy

    def placed(self, net: Net) -> Net:
        """Move a network to its device. Nothing random or running stays inside: a minibatch must be able to repeat what it does."""
        for part in net.modules():
            if "in_bf16" in vars(part):
                part.in_bf16 = self.half  # type: ignore[assignment]
        return net.eval().to(self.device)


def seeded(seed: int, make: Callable[[], Made]) -> Made:
    """Return what ``make`` makes, with weights that depend on the seed alone; no other random number depends on them."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # or the last bits of orthogonal weights depend on how many there happen to be
        try:
            return make()
        finally:
            torch.set_num_threads(threads)


def load_weights(policy: nn.Module, path: str) -> None:
    """Give ``policy`` the weights in a safetensors file; a ConfigError says what does not fit."""
    if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
        raise ConfigError(f"policy.start={path!r} is not a file")
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise ConfigError(f"policy.start={path!r}: there is no such file") from None
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"policy.start={path!r} is not a safetensors file: {error}") from None
    own = policy.state_dict()
    for name in {**own, **weights}:
        if name not in own or name not in weights or own[name].shape != weights[name].shape:
            here, there = (tuple(part[name].shape) if name in part else "none" for part in (own, weights))
            raise ConfigError(
                f"policy.start={path!r} is of another network: {name} has shape {there} there and {here} here; give the policy's "
                "settings it was made with"
            )
    policy.load_state_dict(weights)
