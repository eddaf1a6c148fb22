"""Parameters -> actions: sampling, log-probability, entropy and mode for any action space, and actions -> rows of the env.

In: ``params [*batch, size]``, what the network puts out for one row, side by side and in the order of the space's leaves within
each kind: logits of every Discrete and MultiDiscrete element, logits of every MultiBinary element, means of every Box
element, their log standard deviations. ``action_mask [*batch, choices]``, where given, says which of the first kind's choices are
allowed; a masked choice is never sampled, adds exactly 0 to the entropy and gets exactly 0 gradient.

Out: ``action [*batch, dims]``, one column per element in the same order: choices counted from 0, bits, raw (unbounded) numbers;
int64 where all are discrete, else float32. ``to_env`` makes of it the rows that the environment gets.

Everything is plain torch on whole batches. Parameters of half precision are computed with in float32.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces as gs
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from fugu.errors import SpaceError
from fugu.ops.sample import HALF_LOG_TAU, sample_categorical, sample_gaussian
from fugu.policy.config import LOG_STD_RANGE
from fugu.policy.env_action import EnvAction
from fugu.spaces import Layout


class Distribution(nn.Module):
    """The distribution of actions of ``action_space``. It has no weights; it is a module so that its constants move along."""

    columns: Tensor
    squashes = False
    """True if real numbers are squashed into their bounds, instead of cut off there"""

    def __init__(self, action_space: gs.Space) -> None:
        super().__init__()
        self.layout = Layout(action_space)
        counts, binaries, reals = _elements(self.layout)
        self.counts = counts
        """choices of each categorical element"""
        self.heads = len(counts)
        """number of categorical elements"""
        self.choices = sum(counts)
        """choices of these elements in total; also the width of an action mask"""
        self.binaries = binaries
        self.reals = reals
        self.size = self.choices + binaries + 2 * reals
        """parameters of one row"""
        self.dims = self.heads + binaries + reals
        """columns of an action"""
        self.dtype = torch.float32 if reals else torch.int64
        if self.dims == 0:
            raise SpaceError(f"{action_space} has nothing to choose; a policy needs at least one action")
        self.widest = max(counts, default=0)
        self.padded = len(set(counts)) > 1
        # [heads, widest] column of each choice; one past the last for those a head does not have
        columns = torch.full((self.heads, self.widest), self.choices)
        end = 0
        for head, count in enumerate(counts):
            columns[head, :count] = torch.arange(end, end + count)
            end += count
        self.register_buffer("columns", columns.flatten(), persistent=False)
        self.only_categorical = self.heads == self.dims
        self.env_action = EnvAction(self.layout)
        plain = isinstance(action_space, gs.Discrete) and action_space.start == 0
        self._row_dtype = self.env_action.row_dtype if plain else None
        """dtype of one choice that the environment counts from 0 as well"""

    def sample(self, params: Tensor, action_mask: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """Return ``action [*batch, dims]``; all randomness comes from ``generator`` (None: torch's own)."""
        params = self._check(params)
        parts: list[Tensor] = []
        if self.heads:
            logits = self.logits(params, action_mask)  # [*batch, (heads,) widest]
            # weights need not sum to 1; torch's softmax of a few choices costs as much as the rest of this function
            cumulative = (logits - logits.amax(-1, keepdim=True)).exp().cumsum(-1)
            # u < 1 has the resolution of the dtype, so u * total < total in its rounding: never past the last possible choice
            total = cumulative[..., -1:]
            u = self._uniform(total, generator) * total
            parts.append((cumulative <= u).sum(-1))
        if self.binaries:
            chance = self.bits(params).sigmoid()
            parts.append(self._uniform(chance, generator) < chance)
        if self.reals:
            mean, log_std = self.gaussian(params)
            noise = torch.empty_like(mean).normal_(generator=generator)
            parts.append(torch.addcmul(mean, noise, log_std.exp()))
        return self._join(parts)

    def sample_with_logprob(
        self, params: Tensor, action_mask: Tensor | None = None, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return ``sample`` and the ``logprob`` of what it chose, in one pass for a single choice or real numbers alone."""
        if params.dim() == 2 and self.heads == self.dims == 1:
            logits = self._check(params)
            action, logprob = sample_categorical(logits, self._uniform(logits[:, 0], generator), action_mask)
            return action.unsqueeze(-1), logprob
        if params.dim() == 2 and self.reals == self.dims:
            params = self._check(params)
            return sample_gaussian(params, torch.empty_like(params[:, : self.reals]).normal_(generator=generator))
        action = self.sample(params, action_mask, generator)
        return action, self.logprob(params, action, action_mask)

    def mode(self, params: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """Return the most probable ``action [*batch, dims]``; of equally probable choices the first."""
        params = self._check(params)
        parts: list[Tensor] = []
        if self.heads:
            parts.append(self.logits(params, action_mask).argmax(-1))
        if self.binaries:
            parts.append(self.bits(params) > 0)
        if self.reals:
            parts.append(self.gaussian(params)[0])
        return self._join(parts)

    def logprob(self, params: Tensor, action: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """Return ``[*batch]``, the log-probability (density, for Box elements) of ``action``, summed over its columns."""
        params = self._check(params)
        terms: list[Tensor] = []
        if self.heads:
            logp = self.logits(params, action_mask).log_softmax(-1)
            terms.append(self._chosen(logp, action))
        return _total(terms + self._other_logprob(params, action))

    def entropy(self, params: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """Return ``[*batch]``, the entropy summed over the columns, in nats; of Box elements that of the raw number."""
        params = self._check(params)
        terms: list[Tensor] = []
        if self.heads:
            terms.append(self._spread(self.logits(params, action_mask).log_softmax(-1)))
        return _total(terms + self._other_entropy(params))

    def evaluate(self, params: Tensor, action: Tensor, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ``(logprob, entropy)``, sharing what they have in common."""
        params = self._check(params)
        logprobs: list[Tensor] = []
        entropies: list[Tensor] = []
        if self.heads:
            logp = self.logits(params, action_mask).log_softmax(-1)
            logprobs.append(self._chosen(logp, action))
            entropies.append(self._spread(logp))
        if self.only_categorical:
            return logprobs[0], entropies[0]
        return _total(logprobs + self._other_logprob(params, action)), _total(entropies + self._other_entropy(params))

    def to_env(self, action: Tensor) -> Tensor:
        """Return rows ``[*batch, *row_shape]`` of the action layout for ``action [*batch, dims]``."""
        if self._row_dtype is not None:
            return action.to(self._row_dtype).reshape(action.shape[:-1])
        return self.env_action(action)

    def _check(self, params: Tensor) -> Tensor:
        if params.shape[-1] != self.size:
            raise SpaceError(f"expected params [..., {self.size}] for {self.layout.space}, got {list(params.shape)}")
        return params.float() if params.dtype in (torch.float16, torch.bfloat16) else params

    def logits(self, params: Tensor, action_mask: Tensor | None) -> Tensor:
        """Return ``[*batch, heads, widest]``, or ``[*batch, widest]`` with one head; very low where there is no choice."""
        logits = params if self.size == self.choices else params[..., : self.choices]
        lowest = torch.finfo(logits.dtype).min / 2  # finite, also after the softmax subtracts the largest logit
        if action_mask is not None:
            if action_mask.shape[-1] != self.choices:
                raise SpaceError(f"expected action_mask [..., {self.choices}], got {list(action_mask.shape)}")
            logits = logits.masked_fill(~action_mask, lowest)
        if self.heads == 1:
            return logits
        if self.padded:
            absent = 1.5 * lowest  # below what is forbidden: where everything is, nothing is drawn that does not exist
            logits = F.pad(logits, (0, 1), value=absent).index_select(-1, self.columns)
        return logits.unflatten(-1, (self.heads, self.widest))

    def bits(self, params: Tensor) -> Tensor:
        """Return the logits of the binary elements, ``[*batch, binaries]``."""
        return params[..., self.choices : self.choices + self.binaries]

    def gaussian(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation, each ``[*batch, reals]``."""
        start = self.choices + self.binaries
        return params[..., start : start + self.reals], params[..., start + self.reals :].clamp(*LOG_STD_RANGE)

    def moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the real numbers of an action, each ``[*batch, reals]``."""
        mean, log_std = self.gaussian(params)
        return mean, log_std.exp()

    def _chosen(self, logp: Tensor, action: Tensor) -> Tensor:
        choice = action[..., : self.heads].long()
        if self.heads == 1:
            return logp.gather(-1, choice).squeeze(-1)
        return logp.gather(-1, choice.unsqueeze(-1)).sum((-1, -2))

    def _spread(self, logp: Tensor) -> Tensor:
        """Return the entropy ``[*batch]``; a choice that is not possible adds exp(lowest) * lowest = 0."""
        return -(logp.exp() * logp).sum(-1 if self.heads == 1 else (-1, -2))

    def _other_logprob(self, params: Tensor, action: Tensor) -> list[Tensor]:
        terms: list[Tensor] = []
        if self.binaries:
            bits = self.bits(params)
            terms.append((action[..., self.heads : self.heads + self.binaries] * bits - F.softplus(bits)).sum(-1))
        if self.reals:
            mean, log_std = self.gaussian(params)
            z = (action[..., self.dims - self.reals :] - mean) * (-log_std).exp()
            terms.append((-0.5 * z * z - log_std).sum(-1) - self.reals * HALF_LOG_TAU)
        return terms

    def _other_entropy(self, params: Tensor) -> list[Tensor]:
        terms: list[Tensor] = []
        if self.binaries:
            bits = self.bits(params)
            terms.append((F.softplus(bits) - bits * bits.sigmoid()).sum(-1))
        if self.reals:
            terms.append(self.gaussian(params)[1].sum(-1) + self.reals * (0.5 + HALF_LOG_TAU))
        return terms

    def _uniform(self, like: Tensor, generator: Generator | None) -> Tensor:
        return torch.empty_like(like).uniform_(generator=generator)

    def _join(self, parts: list[Tensor]) -> Tensor:
        """Join the columns of each kind into one action; a single head comes without its axis."""
        if self.heads == 1:
            parts[0] = parts[0].unsqueeze(-1)
        return (parts[0] if len(parts) == 1 else torch.cat([part.to(self.dtype) for part in parts], -1)).to(self.dtype)


def _total(terms: list[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum(0)


def _elements(layout: Layout) -> tuple[list[int], int, int]:
    """Count choices of every categorical element, how many binary and how many real elements ``layout`` has."""
    counts: list[int] = []
    binaries = reals = 0
    for leaf in layout.leaves:
        if leaf.lead or not isinstance(leaf.space, gs.Discrete | gs.MultiDiscrete | gs.MultiBinary | gs.Box):
            kind = "Sequence" if leaf.lead else type(leaf.space).__name__
            raise SpaceError(
                f"action {leaf.name or 'space'!r}: a policy cannot choose a {kind}. Supported: Discrete, MultiDiscrete, MultiBinary, "
                "Box and Dict, Tuple, OneOf of them"
            )
        if isinstance(leaf.space, gs.Discrete):
            counts.append(int(leaf.space.n))
        elif isinstance(leaf.space, gs.MultiDiscrete):
            counts += [int(n) for n in np.ravel(leaf.space.nvec)]
        elif isinstance(leaf.space, gs.MultiBinary):
            binaries += math.prod(leaf.shape)
        else:
            reals += math.prod(leaf.shape)
    return counts, binaries, reals
