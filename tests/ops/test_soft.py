"""The losses of SAC natively, on every instruction set there is, against what SAC computes with torch; and where torch has to."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

import fugu.gpu
import fugu.policy.distribution
from fugu import native as core
from fugu.algorithm.parts.soft import soft_losses
from fugu.algorithm.sac import SAC, Judge, Judges, SACConfig, SACSettings
from fugu.policy.actor_critic import make_policy
from fugu.policy.config import PolicyConfig
from fugu.policy.squashed import Squashed
from fugu.rollout.batch import Batch, Origin

OBS, BOX = gs.Box(-1, 1, (7,), np.float32), gs.Box(-1, 1, (3,), np.float32)


def pair(obs: gs.Space = OBS, box: gs.Space = BOX, **network: Any) -> tuple[SAC, SAC]:
    """The same algorithm twice: natively, and with torch."""
    torch.manual_seed(0)
    config = PolicyConfig(**{"hidden": (40, 24), "activation": "relu", "std": "state", **network})
    policy = make_policy(obs, box, config)
    policy.distribution = Squashed(box)
    critic = Judges(Judge(policy, config) for _ in range(2))
    plain = SAC(policy, SACSettings(sac=SACConfig(gamma=0.9, temperature=0.3)), critic=critic, seed=3)
    for p in (*policy.parameters(), *plain.slow.parameters(), *critic.parameters()):
        p.data += 0.2 * torch.randn(p.shape)
    native = copy.deepcopy(plain)
    native.generator = torch.Generator()
    native.generator.set_state(plain.generator.get_state())
    native.native = soft_losses(native.policy, native.critic, native.slow)
    return native, plain


def batch_of(rows: int, obs: int = 7, reals: int = 3, horizon: int = 1, **more: Any) -> Batch:
    random = torch.Generator().manual_seed(rows)

    def flags(share: float, *shape: int) -> torch.Tensor:
        return torch.rand(*(shape or (rows, horizon)), generator=random) < share

    columns = {
        "obs": torch.randn(rows, horizon, obs, generator=random),
        "obs_after": torch.randn(rows, obs, generator=random),
        "action": torch.rand(rows, horizon, reals, generator=random) * 2 - 1,
        "reward": torch.randn(rows, horizon, generator=random),
        "mask": flags(0.8),
        "terminated": flags(0.3),
        "truncated": torch.zeros(rows, horizon, dtype=torch.bool),
        "acts_after": flags(0.8, rows),
    }
    return Batch({**columns, **more})


def results(algorithm: SAC, batch: Batch) -> list[torch.Tensor]:
    """The losses, their gradients, the metrics, and what goes back to the replay."""
    taken: dict[str, torch.Tensor] = {}
    origin = Origin(lambda columns, which: taken.update(columns))
    found = []
    for loss, metrics in algorithm.losses(Batch(batch.columns, batch.once, origin)):
        learning = [p for p in algorithm.parameters() if p.requires_grad]
        grads = torch.autograd.grad(3 * loss, learning, allow_unused=True, materialize_grads=True)
        found += [loss.detach(), *metrics.values(), *grads]
    return [*found, *taken.values()]


def assert_equal(native: SAC, plain: SAC, batch: Batch) -> None:
    assert native.native is not None
    mine, theirs = results(native, batch), results(plain, batch)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        scale = max(1e-3, b.abs().max().item())
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize(
    "rows, network",
    [
        (1, {}),
        (3, {"activation": "tanh", "hidden": ()}),
        (530, {"hidden": (70, 33, 5), "share": False}),
        (256, {"hidden": (64, 64), "activation": "tanh"}),
        (100, {"normalize_observation": True}),
    ],
)
def test_losses_and_gradients_are_those_of_torch(instructions, rows, network):
    native, plain = pair(**network)
    for algorithm in (native, plain):
        algorithm.policy.observe(torch.randn(50, 7, generator=torch.Generator().manual_seed(1)) * 3 + 1)
    assert_equal(native, plain, batch_of(rows))


def test_many_numbers_and_segments_with_importance_are_learned_from_alike(instructions):
    box = gs.Box(-1, 1, (21,), np.float32)
    native, plain = pair(box=box)
    assert_equal(native, plain, batch_of(60, reals=21, horizon=4, importance=torch.linspace(0, 1, 60)))


def test_observations_of_several_parts_are_learned_from_alike(instructions):
    obs = gs.Dict(
        {"a": gs.Box(-1, 1, (2,), np.float32), "b": gs.Box(-1, 1, (2, 2), np.float32), "c": gs.Box(-1, 1, (), np.float32)}
    )
    native, plain = pair(obs)
    assert_equal(native, plain, batch_of(64))


def test_deviations_out_of_bounds_and_actions_at_the_bounds_have_the_gradients_of_torch(instructions):
    native, plain = pair()
    for algorithm in (native, plain):
        head = algorithm.policy.net.heads[0]
        head.bias.data[:6] = torch.tensor([9.0, -9.0, 0.0, 5.0, -20.0, 1.9])
        head.weight.data[5] *= 0.01
    assert_equal(native, plain, batch_of(200))


def test_critics_that_agree_share_the_gradient_of_the_policy(instructions):
    native, plain = pair()
    for algorithm in (native, plain):
        algorithm.critic[1].load_state_dict(algorithm.critic[0].state_dict())
    assert_equal(native, plain, batch_of(64))


def test_what_rows_hold_that_do_not_count_reaches_nothing(instructions):
    found = []
    for spoil in (0.0, math.nan):
        native, _ = pair()
        batch = batch_of(100)
        idle = ~(batch["mask"][:, 0] & (batch["terminated"][:, 0] | batch["acts_after"]))
        assert 5 < idle.sum() < 95
        columns = {name: batch[name].clone() for name in ("obs", "obs_after", "action", "reward")}
        for column in columns.values():
            column[idle] = spoil
        found.append(results(native, batch.also(**columns)))
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(*found, strict=True))


def test_a_nan_in_a_row_that_counts_is_seen(instructions):
    for name in ("obs", "obs_after", "reward"):
        native, _ = pair()
        batch = batch_of(64)
        batch["mask"][5], batch["acts_after"][5], batch["terminated"][5], batch[name][5] = True, True, False, math.nan
        assert results(native, batch)[0].isnan(), name


def test_threads_do_not_change_a_bit(monkeypatch):
    if core.native is None:
        pytest.skip("the native core is not built")
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(core, "threads", threads)
        found.append(results(pair()[0], batch_of(530)))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_weights_that_were_given_other_memory_are_found(instructions):
    native, plain = pair()
    assert_equal(native, plain, batch_of(20))
    for algorithm in (native, plain):
        for p in (*algorithm.policy.parameters(), *algorithm.critic.parameters()):
            p.data = p.data * 1.1
    assert_equal(native, plain, batch_of(20))


def test_torch_computes_what_the_kernels_do_not_take(monkeypatch):
    if core.native is None:
        pytest.skip("the native core is not built")
    grid = gs.Box(0, 255, (16, 16, 3), np.uint8)
    assert pair()[0].native is not None
    assert pair(hidden=(8, 8, 8, 8))[0].native is None
    assert pair(grid)[0].native is None  # convolutions
    assert pair(std="free")[0].native is None
    with fugu.gpu.emulation():
        assert pair()[0].native is None
    native, _ = pair()
    native.policy.distribution = fugu.policy.distribution.Distribution(BOX)
    assert soft_losses(native.policy, native.critic, native.slow) is None
    native, _ = pair()
    native.policy.in_bf16 = True
    assert soft_losses(native.policy, native.critic, native.slow) is None
    monkeypatch.setattr(core, "native", None)
    assert pair()[0].native is None


def test_arrays_of_other_shapes_are_refused():
    if core.native is None:
        pytest.skip("the native core is not built")
    native, _ = pair()
    rows = batch_of(8)
    short = SimpleNamespace(**{name: rows[name].flatten(0, 1) for name in ("obs", "action", "reward", "terminated")})
    drawn = native.native._drawn(
        SimpleNamespace(action=short.action, obs=short.obs, valid=rows["mask"].flatten()), torch.ones(8), 0.1, native.generator
    )
    networks = native.native.networks
    with pytest.raises(ValueError, match="reward has another shape"):
        networks.critic_loss(
            drawn, next_obs=rows["obs_after"], action=short.action, reward=torch.ones(7), terminated=short.terminated, gamma=0.9
        )
    networks.slow.tensors.pop()
    with pytest.raises(ValueError, match="1 to 4 layers"):
        networks.critic_loss(
            drawn, next_obs=rows["obs_after"], action=short.action, reward=short.reward, terminated=short.terminated, gamma=0.9
        )
