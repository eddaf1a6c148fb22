"""The transformer writes with a cache what it reads in parallel; sees no padding and no future; and refuses what it cannot read."""

from __future__ import annotations

import pytest
import torch
from gymnasium import spaces as gs

from fugu.errors import ConfigError
from fugu.policy.choices import Judged
from fugu.policy.config import PolicyConfig
from fugu.policy.transformer import END, make_transformer

PROMPT, TOKENS, CHOICES = 5, 7, 12


def policy(**settings):
    spaces = gs.MultiDiscrete([CHOICES] * PROMPT), gs.MultiDiscrete([CHOICES] * TOKENS)
    made = make_transformer(*spaces, PolicyConfig(net="transformer", width=32, **settings), seed=1)
    with torch.no_grad():  # away from the nearly uniform start
        for p in made.parameters():
            p.mul_(4.0)
    return made


def prompts(rows: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(2, CHOICES, (rows, PROMPT), generator=generator)
    length = torch.randint(0, PROMPT + 1, (rows, 1), generator=generator)
    return torch.where(torch.arange(PROMPT) < length, tokens, 0)


def draw(made, obs, *, mask=None, greedy=False):
    first = torch.ones(len(obs), dtype=torch.bool)
    return made.draw(obs, None, first, mask, torch.Generator().manual_seed(3), greedy=greedy)


def judge(made, obs, action, mask=None) -> Judged:
    out = made.judge(obs[:, None], None, torch.ones(len(obs), 1, dtype=torch.bool), action[:, None], mask)
    return Judged(out.logprob[:, 0], out.entropy[:, 0])


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_written_with_the_cache_has_the_probabilities_it_is_read_with(masked):
    made, obs = policy(), prompts()
    mask = None
    if masked:
        mask = torch.rand(len(obs), TOKENS * CHOICES, generator=torch.Generator().manual_seed(4)) < 0.5
        mask.view(-1, TOKENS, CHOICES)[..., END] = True
    drawn = draw(made, obs, mask=mask)
    counts = made.counts(drawn.action)
    judged = judge(made, obs, drawn.action, None if mask is None else mask[:, None])
    assert torch.allclose(drawn.logprob[counts], judged.logprob[counts], atol=2e-5)
    assert drawn.logprob[counts].std() > 0.3 and len(set(counts.sum(1).tolist())) > 3
    if mask is not None:
        chosen = mask.view(-1, TOKENS, CHOICES).gather(2, drawn.action[..., None])[..., 0]
        assert chosen[counts].all()


@torch.no_grad()
def test_answers_end_where_they_end_and_count_that_far():
    made, obs = policy(), prompts(200)
    drawn = draw(made, obs)
    for row, counts, unfinished in zip(
        drawn.action.tolist(), made.counts(drawn.action).tolist(), made.unfinished(drawn.action).tolist(), strict=True
    ):
        length = row.index(END) + 1 if END in row else TOKENS
        assert counts == [i < length for i in range(TOKENS)]
        assert not any(row[length:]) and all(row[:length])
        assert unfinished == (END not in row)
    assert made.unfinished(drawn.action).any() and not made.unfinished(drawn.action).all()


@torch.no_grad()
def test_tokens_are_drawn_with_the_probabilities_that_are_said():
    made, obs = policy(), prompts(1).repeat(6000, 1)
    drawn = draw(made, obs)
    first = drawn.action[:, 0]
    said = {int(token): drawn.logprob[first == token, 0][0].exp().item() for token in first.unique()}
    assert sum(said.values()) == pytest.approx(1, abs=1e-3) and 0 not in said
    for token, probability in said.items():
        assert (first == token).float().mean().item() == pytest.approx(probability, abs=0.03)


@torch.no_grad()
def test_the_greedy_answer_is_the_most_probable_token_each_time():
    made, obs = policy(), prompts()
    drawn = draw(made, obs, greedy=True)
    for k in range(TOKENS):
        for other in range(2, CHOICES):
            changed = drawn.action.clone()
            changed[:, k] = other
            worse = judge(made, obs, changed).logprob[:, k] <= drawn.logprob[:, k] + 1e-5
            assert worse[made.counts(drawn.action)[:, k]].all()


@torch.no_grad()
def test_the_room_for_a_prompt_does_not_matter():
    """The same weights with more room than is needed give the same probabilities."""
    made, obs = policy(), prompts()
    drawn = draw(made, obs)
    wide = make_transformer(
        gs.MultiDiscrete([CHOICES] * (PROMPT + 4)), gs.MultiDiscrete([CHOICES] * TOKENS), made.config, seed=5
    )
    weights = made.state_dict()
    weights["position.weight"] = torch.cat([weights["position.weight"], torch.full((4, 32), torch.nan)])
    wide.load_state_dict(weights)
    same = judge(wide, torch.nn.functional.pad(obs, (0, 4)), drawn.action)
    counts = made.counts(drawn.action)
    # positions of what is not there may be anything; NaN would spread if anyone looked
    assert torch.allclose(torch.where(counts, same.logprob, 0.0), torch.where(counts, drawn.logprob, 0.0), atol=2e-5)


def test_no_token_sees_the_future():
    made, obs = policy(), prompts(8)
    action = torch.randint(2, CHOICES, (8, TOKENS), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        before = judge(made, obs, action).logprob
        for k in range(TOKENS):
            changed = action.clone()
            changed[:, k] = (changed[:, k] - 1) % 10 + 2
            after = judge(made, obs, changed).logprob
            assert torch.equal(before[:, :k], after[:, :k])
            assert k == TOKENS - 1 or not torch.allclose(before[:, k + 1 :], after[:, k + 1 :], atol=1e-3)


def test_entropy_is_that_of_the_choices_and_gradients_reach_every_weight():
    made, obs = policy(), prompts()
    action = draw(made, obs).action
    judged = judge(made, obs, action)
    assert (judged.entropy > 0).all() and (judged.entropy <= torch.tensor(CHOICES - 1.0).log() + 1e-5).all()
    (judged.logprob.sum() + judged.entropy.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 and p.grad.isfinite().all() for p in made.parameters())


REFUSED = {
    "real numbers": (gs.Box(-1, 1, (3,)), gs.MultiDiscrete([5] * 4), "--policy.net default"),
    "several parts": (gs.Dict(a=gs.MultiDiscrete([5, 5])), gs.Discrete(3), "--policy.net default"),
    "negative tokens": (gs.Box(-1, 9, (3,), "int32"), gs.MultiDiscrete([5] * 4), "bounds"),
    "one choice": (gs.MultiDiscrete([5] * 4), gs.Discrete(4), "--policy.net default"),
    "unequal vocabularies": (gs.MultiDiscrete([5] * 4), gs.MultiDiscrete([4, 5]), "one vocabulary"),
    "no end": (gs.MultiDiscrete([5] * 4), gs.MultiDiscrete([1, 1]), "no token 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_spaces_that_are_no_texts_are_refused(case):
    observation_space, action_space, hint = REFUSED[case]
    with pytest.raises(ConfigError, match=hint):
        make_transformer(observation_space, action_space)


def test_texts_and_boxes_of_tokens_can_be_prompts():
    action_space = gs.MultiDiscrete([9] * 4)
    assert make_transformer(gs.Text(10, charset="abc"), action_space).prompt == 10
    assert make_transformer(gs.Box(0, 30, (6,), "int32"), action_space).token.num_embeddings == 32


def test_the_width_must_be_shared_out_among_the_heads():
    with pytest.raises(ConfigError, match="--policy.width 66"):
        PolicyConfig(net="transformer", width=65, attention_heads=3)
