"""A policy that writes: the prompt is the observation, the whole answer is one action, token by token (a causal transformer).

In: ``obs [*batch, prompt]``, whole numbers, 0 where a prompt is shorter than there is room for; or rows of a Dict whose part ``tokens``
is that, and whose other parts are not looked at. Out: ``action [*batch, tokens]``,
an answer that ends with ``END``, after which there is nothing (0), or was cut off where there was no more room. One vocabulary
serves both.

A row is read as the prompt, a mark that the answer begins, and the answer. Padding is never read, and positions
count on from the last token of the prompt, so that what room there is does not matter. ``draw`` writes with a cache of keys and
values, a token per pass; ``judge`` sees all tokens of an answer at once. Both compute the same, to rounding.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

from fugu.errors import ConfigError
from fugu.policy.attention import Block, Cache, visible
from fugu.policy.choices import Drawn, Judged
from fugu.policy.config import PolicyConfig
from fugu.policy.distribution import Distribution
from fugu.spaces import Layout
from fugu.spaces.views import leaf_tensors

NOTHING, END = 0, 1
"""tokens with a special meaning"""


def make_transformer(
    observation_space: gs.Space, action_space: gs.Space, config: PolicyConfig | None = None, *, seed: int | None = None
) -> Transformer:
    """Make a policy for these spaces. With ``seed`` its weights depend on nothing else, and torch's own generator is left alone."""
    config = config or PolicyConfig(net="transformer")
    if seed is None:
        return Transformer(observation_space, action_space, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Transformer(observation_space, action_space, config)


class Transformer(nn.Module):
    state_size = 0
    computed_natively = False

    def __init__(self, observation_space: gs.Space, action_space: gs.Space, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.obs_layout = Layout(observation_space)
        self._leaf = _tokens_leaf(self.obs_layout)
        self.prompt, read = _prompt(self.obs_layout, self._leaf)
        self.tokens, written = _answer(action_space)
        self.distribution = Distribution(action_space)
        self.choices = written
        self.in_bf16 = False
        """True if matrix products are computed in bfloat16"""
        width = config.width
        self.token = nn.Embedding(max(read, written) + 1, width)  # the last one marks where the answer begins
        self.position = nn.Embedding(self.prompt + self.tokens, width)
        self.blocks = nn.ModuleList(Block(width, config.attention_heads, config.layers) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.never: Tensor
        self.register_buffer("never", torch.arange(written) == NOTHING, persistent=False)
        """[choices] tokens that are never written: NOTHING neither says anything nor ends an answer"""
        self.head = nn.Linear(width, written)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    # --- writing ---

    @torch.no_grad()
    def draw(
        self,
        obs: Tensor,
        state: Tensor | None,
        first: Tensor,
        action_mask: Tensor | None,
        generator: torch.Generator,
        *,
        greedy: bool = False,
    ) -> Drawn:
        """Write until every row has ended. ``state`` and ``first`` are ignored: the prompt holds everything."""
        prompt = self._read_prompt(obs)
        length = (prompt != NOTHING).sum(1)
        action = prompt.new_zeros((len(prompt), self.tokens))
        logprob = torch.zeros((len(prompt), self.tokens), device=prompt.device)
        allowed = self._allowed(action_mask)
        room, width, heads = self.prompt + self.tokens, self.config.width, self.config.attention_heads
        cache = [Cache.empty(len(prompt), room, heads, width, prompt.device) for _ in self.blocks]
        ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
        reading = torch.cat([prompt, torch.full_like(prompt[:, :1], self._begin)], 1)
        for k in range(self.tokens):
            logits = self._logits(self._next(reading, k, length, prompt, cache), allowed, k)
            chosen = logits.argmax(-1) if greedy else _sampled(logits, generator)
            action[:, k] = torch.where(ended, NOTHING, chosen)
            said = logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
            logprob[:, k] = torch.where(ended, 0.0, said)
            ended |= chosen == END
            if ended.all():
                break
            reading = action[:, k : k + 1]
        return Drawn(action, logprob, state)

    def _next(self, reading: Tensor, k: int, length: Tensor, prompt: Tensor, cache: list[Cache]) -> Tensor:
        """Return ``[rows, width]`` after the last token of ``reading``, whose tokens follow the contents of ``cache``."""
        start = 0 if k == 0 else self.prompt + k
        index = torch.arange(start, self.prompt + k + 1, device=prompt.device)
        x = self.token(reading) + self.position(_positions(index, length, self.prompt))
        seen = visible(index, self.prompt + k + 1, prompt != NOTHING)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.in_bf16):
            for block, known in zip(self.blocks, cache, strict=True):
                x = block(x, seen, known, start)
        return self.norm(x[:, -1])

    # --- reading what was written ---

    def judge(self, obs: Tensor, state: Tensor | None, first: Tensor, action: Tensor, action_mask: Tensor | None) -> Judged:
        return self.read(obs, action, action_mask)[0]

    def read(self, obs: Tensor, action: Tensor, action_mask: Tensor | None) -> tuple[Judged, Tensor]:
        """Return ``judge``, and ``[*batch, tokens, width]``: the hidden state each token was chosen from, for a critic to read."""
        batch = action.shape[:-1]
        prompt, answer = self._read_prompt(obs).reshape(-1, self.prompt), action.long().reshape(-1, self.tokens)
        begin = torch.full_like(prompt[:, :1], self._begin)
        reading = torch.cat([prompt, begin, answer[:, :-1]], 1)  # [rows, prompt + tokens]
        index = torch.arange(reading.shape[1], device=reading.device)
        x = self.token(reading) + self.position(_positions(index, (prompt != NOTHING).sum(1), self.prompt))
        seen = visible(index, len(index), prompt != NOTHING)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.in_bf16):
            for block in self.blocks:
                x = block(x, seen)
        hidden = self.norm(x[:, self.prompt :])
        logits = self._logits(hidden, self._allowed(action_mask), slice(None))
        logp = logits.log_softmax(-1)  # [rows, tokens, choices]
        logprob = logp.gather(-1, answer[..., None])[..., 0]
        entropy = -(logp.exp() * logp).sum(-1)
        judged = Judged(logprob.reshape(*batch, self.tokens), entropy.reshape(*batch, self.tokens))
        return judged, hidden.reshape(*batch, self.tokens, -1)

    def counts(self, action: Tensor) -> Tensor:
        """Count all tokens up to the end, the end included."""
        ended = action == END
        return ended.int().cumsum(-1) - ended.int() == 0

    def unfinished(self, action: Tensor) -> Tensor:
        return ~(action == END).any(-1)

    def observe(self, obs: Tensor, mask: Tensor | None = None) -> None:
        """Do nothing: tokens are not normalised."""

    def _read_prompt(self, obs: Tensor) -> Tensor:
        """Return the prompt, ``[*batch, prompt]``."""
        return leaf_tensors(self.obs_layout, obs)[self._leaf].long()

    @property
    def _begin(self) -> int:
        return self.token.num_embeddings - 1

    def _allowed(self, action_mask: Tensor | None) -> Tensor | None:
        """Return the tokens that are allowed, ``[rows, tokens, choices]``."""
        return None if action_mask is None else action_mask.reshape(-1, self.tokens, self.choices)

    def _logits(self, hidden: Tensor, allowed: Tensor | None, k: int | slice) -> Tensor:
        logits = self.head(hidden).float()
        lowest = torch.finfo(torch.float32).min / 2  # finite: an entropy of 0 * infinity is not a number
        logits = logits.masked_fill(self.never, lowest)
        return logits if allowed is None else logits.masked_fill(~allowed[:, k], lowest)


def _positions(index: Tensor, length: Tensor, room: int) -> Tensor:
    """Return ``[rows, index]``: places in the prompt as they are; after it, counting on from its last token."""
    after = length[:, None] + (index - room)
    return torch.where(index < room, index, after)


def _sampled(logits: Tensor, generator: torch.Generator) -> Tensor:
    weights = (logits - logits.amax(-1, keepdim=True)).exp().cumsum(-1)
    drawn = torch.rand(len(logits), 1, generator=generator, device=logits.device)
    return (weights <= drawn * weights[:, -1:]).sum(-1)


def _tokens_leaf(layout: Layout) -> int:
    """Return the index of the part of an observation that is the prompt: the only part, or the one called ``tokens``."""
    found = [k for k, leaf in enumerate(layout.leaves) if len(layout.leaves) == 1 or leaf.path == ("tokens",)]
    leaf = layout.leaves[found[0]] if found else None
    if leaf is None or len(leaf.shape) != 1 or leaf.dtype.kind not in "iu" or math.prod(leaf.shape) == 0:
        raise ConfigError(
            f"policy.net=transformer reads a prompt of tokens, a MultiDiscrete or a Box of whole numbers with one axis, or a Text, or "
            f"a Dict with such a part called tokens; got {layout.space}. Type --policy.net default for other observations"
        )
    return found[0]


def _prompt(layout: Layout, index: int) -> tuple[int, int]:
    """Return the room for tokens, and the number of different ones."""
    leaf = layout.leaves[index]
    space = leaf.space
    if isinstance(space, gs.MultiDiscrete):
        return leaf.shape[0], int(space.nvec.max())
    if isinstance(space, gs.Box):
        if space.low.min() < 0 or space.high.max() >= 2**20:
            raise ConfigError(
                f"policy.net=transformer: tokens must be from 0 to 1,048,575, got {space}; give the Box these bounds"
            )
        return leaf.shape[0], int(space.high.max()) + 1
    node = layout.root if layout.root.leaf == index else next(child for child in layout.root.children if child.leaf == index)
    return leaf.shape[0], len(node.characters or ()) + 1


def _answer(space: gs.Space) -> tuple[int, int]:
    if (
        not isinstance(space, gs.MultiDiscrete)
        or space.nvec.ndim != 1
        or len(set(space.nvec.tolist())) != 1
        or np.any(space.start)
    ):
        raise ConfigError(
            f"policy.net=transformer writes tokens of one vocabulary, MultiDiscrete([n] * most_tokens), got {space}; type "
            "--policy.net default for other actions"
        )
    if space.nvec[0] <= END:
        raise ConfigError(
            f"policy.net=transformer: {space} has no token {END}, which ends an answer; give it at least 3 tokens"
        )
    return len(space.nvec), int(space.nvec[0])
