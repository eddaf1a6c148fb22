"""A world model with an actor in it: what an observation means, what follows from an action, and what to do.

In: rows ``[time, segments, *row]`` of observations, with what was done before each and what that brought. Out: states
(``policy/rssm.py``), and the losses of a model that predicts observations, rewards, endings and allowed actions from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from gymnasium import spaces as gs
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from fugu.errors import ConfigError
from fugu.ops import roll
from fugu.ops.divergence import divergences
from fugu.ops.mixed import mixed
from fugu.policy.action_input import ActionInput
from fugu.policy.config import PolicyConfig
from fugu.policy.config_world import WorldSize
from fugu.policy.decoder import Decoder
from fugu.policy.distribution import Distribution
from fugu.policy.encoder import Encoder, is_real
from fugu.policy.normalize import RunningMoments
from fugu.policy.rssm import RSSM, UNIMIX, Head, Stack, draw
from fugu.policy.symlog import TwoHot, symlog
from fugu.spaces import Layout
from fugu.spaces.views import leaf_tensors

BINS = 255
LAYERS = 3
"""layers of encoder, decoder, actor and critic; the heads of reward, ending and allowed actions have one"""
STDS = (0.1, 1.0)
"""least and largest deviation of continuous actions"""


@dataclass(frozen=True, slots=True)
class Believed:
    """States of observed rows, ``[time, segments, ...]``."""

    deter: Tensor
    stoch: Tensor
    posterior: Tensor
    """[time, segments, stoch, classes]"""

    @property
    def features(self) -> Tensor:
        return torch.cat([self.deter, self.stoch], -1)

    def classes(self) -> Tensor:
        """Return the classes of ``stoch``, ``[time, segments, stoch]``."""
        return self.stoch.detach().view_as(self.posterior).argmax(-1)


class World(nn.Module):
    """The model, and the actor, which sees its states."""

    def __init__(
        self, observation_space: gs.Space, action_space: gs.Space, size: WorldSize, net: PolicyConfig, remember: int = 0
    ) -> None:
        """``remember``: as in ``RSSM``."""
        super().__init__()
        self.size = size
        self.obs_layout = Layout(observation_space)
        if not self.obs_layout.leaves or 0 in self.obs_layout.row_shape:
            raise ConfigError(f"{observation_space} has nothing to observe; a policy needs at least one number")
        self.distribution = Distribution(action_space)
        self.action_input = ActionInput(self.distribution)
        real = {i: leaf.shape for i, leaf in enumerate(self.obs_layout.leaves) if is_real(leaf)}
        self._real = list(real)
        self.moments = nn.ModuleDict(
            {str(i): RunningMoments(shape) for i, shape in real.items()} if net.normalize_observation else {}
        )
        """moments by index of the leaf; empty unless observations are normalised"""
        self.encoder = Encoder(self.obs_layout, net.embedding, net.kinds)
        self.encoded = Stack([self.encoder.size, *[size.units] * LAYERS])
        self.rssm = RSSM(size, size.units, self.action_input.size, remember)
        self.decoder = Decoder(self.obs_layout, self.encoder, size.state, size.units, LAYERS, size.depth)
        self.two_hot = TwoHot(BINS)
        self.reward_head = Head(size.state, size.units, 1, BINS, 0.0)
        self.continue_head = Head(size.state, size.units, 1, 1)
        self.mask_head = Head(size.state, size.units, 1, self.distribution.choices) if self.distribution.choices else None
        """which choices are allowed; learned where environments say so"""
        self.actor = Head(size.state, size.units, LAYERS, self.distribution.size, 0.01)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """Return ``rows [N, *row]`` as leaves, real numbers normalised and squeezed."""
        leaves = leaf_tensors(self.obs_layout, rows)
        for i in self._real:
            moments = self.moments[str(i)] if self.moments else None
            leaves[i] = symlog(leaves[i].float() if moments is None else moments(leaves[i]))
        return leaves

    def state(self, carry: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return ``deter`` and ``stoch`` of what is carried: half as many bytes, and the number of each class."""
        return carry["deter"].float(), F.one_hot(carry["stoch"].long(), self.size.classes).flatten(-2).float()

    def observe(
        self,
        leaves: list[Tensor],
        action: Tensor,
        first: Tensor,
        deter: Tensor,
        stoch: Tensor,
        generator: Generator | None,
    ) -> Believed:
        """Return the states of rows whose ``leaves`` are ``[time * segments, ...]``; the rest as in ``RSSM.observe``."""
        features = self.encoded(self.encoder(leaves)).unflatten(0, first.shape)
        return Believed(*self.rssm.observe(features, action, first, deter, stoch, generator))

    def losses(
        self,
        seen: Believed,
        leaves: list[Tensor],
        reward: Tensor,
        goes_on: Tensor,
        action_mask: Tensor | None,
        free: float,
    ) -> dict[str, Tensor]:
        """Return the losses ``[time, segments]`` of each row by name.

        ``reward`` is what came with the row, ``goes_on`` how likely the episode is to go on after it. Each side of the divergence has
        ``free`` nats that cost nothing.
        """
        shape = reward.shape
        features = seen.features
        flat = features.flatten(0, 1)
        prior = self.rssm.prior(seen.deter)
        dynamics, representation = divergences(seen.posterior, prior)
        losses = {
            "observation": self.decoder(flat, leaves).view(shape),
            "reward": self.two_hot.loss(self.reward_head(features), reward),
            "continue": F.binary_cross_entropy_with_logits(self.continue_head(features).squeeze(-1), goes_on, reduction="none"),
            "dynamics": dynamics.clamp(min=free),
            "representation": representation.clamp(min=free),
        }
        if self.mask_head is not None and action_mask is not None:
            allowed = F.binary_cross_entropy_with_logits(self.mask_head(features), action_mask.float(), reduction="none")
            losses["allowed"] = allowed.sum(-1)
        return losses

    def follow(
        self, deter: Tensor, stoch: Tensor, action: Tensor, generator: Generator | None, *, greedy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the state that follows when ``action [rows, numbers]`` is taken, as the model expects it and as ``action_input`` gives
        it; ``greedy``: the most probable state."""
        deter = self.rssm.step(deter, stoch, self.rssm.from_action(action))
        return deter, draw(self.rssm.prior(deter), generator, greedy=greedy)

    def model(self) -> roll.Model:
        """Return what imagination is made of, as ``ops/roll.py`` has it."""
        d, rssm = self.distribution, self.rssm
        return roll.Model(
            rssm.cell(),
            rssm.prior_net.params(),
            self.actor.params(),
            rssm.from_action.params(),
            self.size.classes,
            UNIMIX,
            d.counts,
            d.binaries,
            d.reals,
            STDS,
        )

    def shown(self, rows: Tensor) -> list[Tensor]:
        """Return observations in the form in which ``decoder.shown`` predicts them."""
        return self.decoder.targets(self.leaves(rows))

    def reward(self, features: Tensor) -> Tensor:
        return self.two_hot.mean(self.reward_head(features))

    def goes_on(self, features: Tensor) -> Tensor:
        return self.continue_head(features).squeeze(-1).sigmoid()

    def allowed(self, features: Tensor) -> Tensor | None:
        """Return which choices the model expects to be allowed; all of an element's if it expects none of them to be."""
        if self.mask_head is None:
            return None
        allowed = [part > 0 for part in self.mask_head(features).split(self.distribution.counts, -1)]
        return torch.cat([part | ~part.any(-1, keepdim=True) for part in allowed], -1)

    def params(self, features: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """Return the parameters of ``distribution``: of choices 1% spread evenly over those allowed, of real numbers a bounded mean
        and deviation."""
        out = self.actor(features)
        d = self.distribution
        choices, bits, mean, deviation = out.split([d.choices, d.binaries, d.reals, d.reals], -1)
        parts: list[Tensor] = []
        if d.choices and action_mask is None:
            pairs = zip(choices.split(d.counts, -1), d.counts, strict=True)
            parts += [mixed(logits, count, UNIMIX).squeeze(-2).log() for logits, count in pairs]
        elif d.choices and action_mask is not None:
            masked = zip(choices.split(d.counts, -1), action_mask.split(d.counts, -1), strict=True)
            parts += [_mixed(logits, allowed) for logits, allowed in masked]
        parts += [bits] if d.binaries else []
        if d.reals:
            low, high = STDS
            parts += [mean.tanh(), (low + (high - low) * torch.sigmoid(deviation + 2)).log()]
        return torch.cat(parts, -1)

    @torch.no_grad()
    def take_in(self, rows: Tensor, mask: Tensor) -> None:
        """Take ``rows [*batch, *row]`` where ``mask [*batch]`` is true into the moments that normalise observations."""
        leaves = leaf_tensors(self.obs_layout, rows) if self.moments else []
        for index, moments in self.moments.items():
            moments.update(leaves[int(index)], mask)  # type: ignore[operator]


def _mixed(logits: Tensor, allowed: Tensor) -> Tensor:
    """Return log-probabilities of the choices of one element, of which some are allowed."""
    chance = logits.masked_fill(~allowed, torch.finfo(logits.dtype).min / 2).softmax(-1)
    even = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    return ((1 - UNIMIX) * chance + UNIMIX * even).clamp(min=1e-30).log()
