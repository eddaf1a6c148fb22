"""Edges, faults and promises of the advantage kernels: shapes, NaN, threads, memory, errors."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fugu.advantage import gae, gae_reference, vtrace, vtrace_reference
from fugu.errors import ConfigError, SpaceError
from tests.ops.columns import noise, random_ratio

SETTINGS: dict[str, Any] = {"gamma": 0.97, "lam": 0.9}
COLUMNS = ("value", "reward", "terminated", "truncated")


@pytest.mark.parametrize("horizon", [1, 3, 7, 8, 9, 15, 16, 17, 24])
@pytest.mark.parametrize("segments", [1, 2, 7, 8, 9, 16, 19])
def test_kernel_equals_reference_at_every_remainder(kernel, segments, horizon):
    columns, ratio = noise(segments, horizon, seed=segments), random_ratio(segments, horizon)
    mask = np.random.default_rng(segments).random((segments, horizon)) < 0.7
    for kept in (None, mask):
        expected = gae_reference(**columns, **SETTINGS, mask=kept)
        np.testing.assert_allclose(gae(**columns, **SETTINGS, mask=kept), expected, rtol=0, atol=1e-5)
        expected = vtrace_reference(**columns, ratio=ratio, **SETTINGS, rho_clip=1.2, c_clip=0.8, mask=kept)
        got = vtrace(**columns, ratio=ratio, **SETTINGS, rho_clip=1.2, c_clip=0.8, mask=kept)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("horizon", [32, 40, 63, 248, 256, 264, 269, 515, 600])
def test_kernel_equals_reference_over_long_horizons(kernel, horizon):
    """Endings are looked up in blocks of columns; there must be some on both sides of where two blocks meet."""
    columns, ratio = noise(16, horizon, seed=horizon), random_ratio(16, horizon)
    np.testing.assert_allclose(gae(**columns, **SETTINGS), gae_reference(**columns, **SETTINGS), rtol=0, atol=1e-5)
    expected = vtrace_reference(**columns, ratio=ratio, **SETTINGS)
    np.testing.assert_allclose(vtrace(**columns, ratio=ratio, **SETTINGS), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [2, 128, 255])
def test_any_byte_but_zero_is_true(kernel, value):
    columns = noise(9, 41)
    expected = gae_reference(**columns, **SETTINGS)
    for name in ("terminated", "truncated"):
        columns[name] = (columns[name].view(np.uint8) * np.uint8(value)).view(np.bool_)
    np.testing.assert_allclose(gae(**columns, **SETTINGS), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_nothing_in_nothing_out(kernel, shape):
    columns = noise(*shape)
    assert gae(**columns, **SETTINGS).shape == shape
    assert vtrace(**columns, ratio=random_ratio(*shape), **SETTINGS).shape == shape


def test_everything_terminated_leaves_rewards_less_values(kernel):
    columns = noise(9, 11)
    columns["terminated"][:] = True
    np.testing.assert_array_equal(gae(**columns, **SETTINGS), columns["reward"] - columns["value"])


def test_everything_truncated_leaves_td_errors(kernel):
    columns = noise(9, 11, ending=0)
    columns["truncated"][:] = True
    after = np.concatenate([columns["value"][:, 1:], columns["bootstrap"][:, None]], axis=1)
    expected = columns["reward"] + np.float32(0.97) * after - columns["value"]
    np.testing.assert_allclose(gae(**columns, **SETTINGS), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("horizon", [1, 8, 13])
def test_ending_in_the_last_column_bootstraps_only_if_truncated(kernel, horizon):
    columns = noise(3, horizon, ending=0)
    columns["truncated"][1, -1] = columns["terminated"][2, -1] = True
    got = gae(**columns, **SETTINGS)[:, -1]
    delta = columns["reward"][:, -1] - columns["value"][:, -1] + np.float32(0.97) * columns["bootstrap"] * [1, 1, 0]
    np.testing.assert_allclose(got, delta, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("column", ["value", "reward", "ratio"])
def test_nan_stays_in_its_segment_and_behind_the_previous_cut(kernel, column):
    columns, ratio = noise(20, 40, ending=0), random_ratio(20, 40)
    columns["truncated"][:, 9] = columns["terminated"][:, 21] = True
    clean = vtrace(**columns, ratio=ratio, **SETTINGS)
    (ratio if column == "ratio" else columns[column])[7, 30] = np.nan
    (ratio if column == "ratio" else columns[column])[11, 15] = np.inf if column != "ratio" else np.nan
    got = vtrace(**columns, ratio=ratio, **SETTINGS)
    expected = np.zeros((20, 40), bool)
    expected[7, 22:31] = expected[11, 10:16] = True
    assert (np.isnan(got) | np.isinf(got)).tolist() == expected.tolist()
    np.testing.assert_array_equal(got[~expected], clean[~expected])


def test_nan_value_after_a_terminated_row_is_not_read(kernel):
    columns = noise(9, 12, ending=0)
    columns["terminated"][:, 4] = columns["terminated"][:, 11] = True
    columns["value"][:, 5] = columns["reward"][:, 5] = columns["bootstrap"][:] = np.nan
    got = gae(**columns, **SETTINGS)
    assert np.isfinite(np.delete(got, 5, axis=1)).all()


def test_nan_bootstrap_reaches_back_to_the_last_cut(kernel):
    for horizon in (8, 13):
        columns = noise(9, horizon, ending=0)
        columns["truncated"][:, 2] = True
        columns["bootstrap"][4] = np.nan
        bad = np.isnan(gae(**columns, **SETTINGS))
        assert bad[4].tolist() == [False] * 3 + [True] * (horizon - 3)
        assert bad.sum() == horizon - 3


def test_infinite_bootstrap_gives_infinite_advantages(kernel):
    for horizon in (8, 13):
        columns = noise(9, horizon, ending=0)
        columns["bootstrap"][4] = np.inf
        assert np.isposinf(gae(**columns, **SETTINGS)[4]).all()


def test_masked_rows_are_zero_even_when_their_advantage_is_not_a_number(kernel):
    columns = noise(9, 12, ending=0)
    mask = np.ones((9, 12), bool)
    mask[:, 0] = mask[3, 6] = False
    columns["truncated"][3, 5] = True
    columns["reward"][3, 6] = np.nan
    got = gae(**columns, **SETTINGS, mask=mask)
    assert np.isfinite(got).all()
    assert (got[~mask] == 0).all()
    assert (got[mask] != 0).all()


def test_every_number_of_threads_gives_the_same_bits():
    columns, ratio = noise(8003, 70), random_ratio(8003, 70)
    first = vtrace(**columns, ratio=ratio, **SETTINGS, threads=1)
    np.testing.assert_allclose(first, vtrace_reference(**columns, ratio=ratio, **SETTINGS), rtol=0, atol=1e-5)
    for threads in (2, 3, 4, 16):
        assert vtrace(**columns, ratio=ratio, **SETTINGS, threads=threads).tobytes() == first.tobytes()


def test_a_segment_has_the_same_bits_in_any_company():
    columns = noise(40, 37)
    whole = gae(**columns, **SETTINGS)
    for low, high in ((0, 1), (3, 20), (8, 16), (39, 40)):
        part = {name: np.ascontiguousarray(array[low:high]) for name, array in columns.items()}
        assert gae(**part, **SETTINGS).tobytes() == whole[low:high].tobytes()


def test_calls_from_many_threads_do_not_disturb_each_other():
    columns = [noise(4000, 130, seed=seed) for seed in range(4)]
    expected = [gae(**c, **SETTINGS, threads=1) for c in columns]
    same = [True] * 4

    def call(i: int) -> None:
        for _ in range(20):
            same[i] = same[i] and np.array_equal(gae(**columns[i], **SETTINGS, threads=3), expected[i])

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(same)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_computes_with_threads_of_its_own():
    columns = noise(4000, 130)
    expected = gae(**columns, **SETTINGS, threads=2)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(gae(**columns, **SETTINGS, threads=2), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_out_is_written_and_returned(kernel):
    columns = noise(9, 12)
    out = np.full((9, 12), np.nan, np.float32)
    assert gae(**columns, **SETTINGS, out=out) is out
    np.testing.assert_array_equal(out, gae(**columns, **SETTINGS))


@pytest.mark.parametrize("horizon", [8, 13, 40])
def test_out_may_be_reward_or_ratio(kernel, horizon):
    columns, ratio = noise(11, horizon), random_ratio(11, horizon)
    expected = vtrace(**columns, ratio=ratio, **SETTINGS)
    in_ratio = ratio.copy()
    vtrace(**columns, ratio=in_ratio, **SETTINGS, out=in_ratio)
    np.testing.assert_array_equal(in_ratio, expected)
    vtrace(**columns, ratio=ratio, **SETTINGS, out=columns["reward"])
    np.testing.assert_array_equal(columns["reward"], expected)


def test_inputs_are_left_alone_and_may_be_read_only(kernel):
    columns = noise(9, 12)
    before = {name: array.copy() for name, array in columns.items()}
    for array in columns.values():
        array.flags.writeable = False
    gae(**columns, **SETTINGS)
    for name, array in columns.items():
        np.testing.assert_array_equal(array, before[name])


def test_tensors_come_back_as_tensors_over_the_same_memory(kernel):
    torch = pytest.importorskip("torch")
    columns, ratio = noise(9, 12), random_ratio(9, 12)
    tensors = {name: torch.from_numpy(array) for name, array in columns.items()}
    tensors["value"].requires_grad_()
    out = torch.empty(9, 12)
    got = gae(**tensors, **SETTINGS)
    assert isinstance(got, torch.Tensor)
    assert not got.requires_grad
    np.testing.assert_array_equal(got.numpy(), gae(**columns, **SETTINGS))
    assert vtrace(**tensors, ratio=torch.from_numpy(ratio), **SETTINGS, out=out) is out
    np.testing.assert_array_equal(out.numpy(), vtrace(**columns, ratio=ratio, **SETTINGS))


def test_importing_and_computing_does_not_import_torch():
    program = (
        "import sys, numpy as np; from fugu.advantage import gae; a = np.zeros((8, 8), np.float32); f = a > 1;"
        "gae(a, a, f, f, a[0], gamma=0.9, lam=0.9); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


WRONG: dict[str, tuple[Callable[[np.ndarray], Any], str]] = {
    "dtype": (lambda array: array.astype(np.float64), r"got float64\[.*pass {name}.astype\(np\.(float32|bool)\)"),
    "uint8 flags": (lambda array: array.astype(np.uint8), r"got uint8\[.*pass {name}.astype\(np\.(float32|bool)\)"),
    "shape": (lambda array: np.ascontiguousarray(array[:-1]), r"expected (float32|bool)\[.*\], got (float32|bool)\[5"),
    "axes": (lambda array: array[None], r"expected (float32|bool)\[.*\], got (float32|bool)\[1, 6"),
    "strided": (lambda array: np.repeat(array, 2, axis=-1)[..., ::2], r"contiguous .* pass np.ascontiguousarray\({name}\)"),
    "kind": (lambda array: array.tolist(), r"expected a numpy array or a CPU tensor, .* got list"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", [*COLUMNS, "bootstrap", "ratio", "mask", "out"])
def test_what_does_not_fit_is_refused_by_name(name, wrong):
    columns = {**noise(6, 7), "ratio": random_ratio(6, 7), "mask": np.ones((6, 7), bool), "out": np.zeros((6, 7), np.float32)}
    spoil, message = WRONG[wrong]
    columns[name] = spoil(columns[name])
    if name == "value" and wrong == "shape":
        name, message = "reward", r"expected float32\[5, 7\], got float32\[6, 7\]"  # value says what the shape is
        columns["out"] = columns["out"][:-1].copy()
    with pytest.raises(SpaceError, match=f"^{name}: .*{message.replace('{name}', name)}"):
        vtrace(**columns, **SETTINGS)


def test_tensors_that_do_not_fit_are_refused_by_name():
    torch = pytest.importorskip("torch")
    columns = {name: torch.from_numpy(array) for name, array in noise(6, 7).items()}
    for spoiled, message in (
        (columns["reward"].double(), r"reward: .* pass reward.to\(torch.float32\)"),
        (columns["reward"].bfloat16(), "reward: bfloat16 tensor"),
        (columns["reward"].T.contiguous().T, r"reward: .*pass reward.contiguous\(\)"),
        (columns["reward"].to("meta"), "reward: expected a CPU tensor, got one on meta"),
    ):
        with pytest.raises(SpaceError, match=message):
            gae(**{**columns, "reward": spoiled}, **SETTINGS)


def test_out_that_overlaps_an_input_is_refused():
    columns = noise(6, 8)
    with pytest.raises(SpaceError, match="out: overlaps value"):
        gae(**columns, **SETTINGS, out=columns["value"])
    memory = np.zeros((7, 8), np.float32)
    with pytest.raises(SpaceError, match="out: overlaps reward"):
        gae(**{**columns, "reward": memory[:6]}, **SETTINGS, out=memory[1:])
    with pytest.raises(SpaceError, match="out: overlaps terminated"):
        flags = memory[:6].view(bool).reshape(-1)[:48].reshape(6, 8)
        gae(**{**columns, "terminated": flags}, **SETTINGS, out=memory[:6])


def test_read_only_out_is_refused():
    out = np.zeros((6, 7), np.float32)
    out.flags.writeable = False
    with pytest.raises(SpaceError, match="out: the array is read-only"):
        gae(**noise(6, 7), **SETTINGS, out=out)


@pytest.mark.parametrize(
    ("setting", "number"),
    [("gamma", 1.5), ("gamma", -0.1), ("gamma", math.nan), ("lam", 2), ("rho_clip", 0), ("c_clip", math.nan), ("threads", 0)],
)
def test_impossible_settings_are_refused_by_name(setting, number):
    with pytest.raises(ConfigError, match=f"^{setting}={number} must be"):
        vtrace(**noise(6, 7), ratio=random_ratio(6, 7), **{**SETTINGS, setting: number})


def test_infinite_clips_do_not_clip(kernel):
    columns, ratio = noise(6, 7), random_ratio(6, 7)
    got = vtrace(**columns, ratio=ratio, **SETTINGS, rho_clip=math.inf, c_clip=math.inf)
    np.testing.assert_array_equal(got, vtrace(**columns, ratio=ratio, **SETTINGS, rho_clip=1e9, c_clip=1e9))


def test_estimates_are_the_same_in_both_memory_orders_and_those_of_the_references():
    torch = pytest.importorskip("torch")
    from fugu.ops.advantage import estimate

    mask = np.random.default_rng(3).random((9, 12)) < 0.8
    columns, ratio = noise(9, 12), np.where(mask, random_ratio(9, 12), np.float32(1))
    tensors = {name: torch.from_numpy(array) for name, array in {**columns, "mask": mask}.items()}
    by_time = {name: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor for name, tensor in tensors.items()}
    expected = gae_reference(**columns, **SETTINGS, mask=mask)
    traced = vtrace_reference(**columns, ratio=ratio, **SETTINGS, rho_clip=1.2, c_clip=1.1)
    for given in (tensors, by_time):
        advantage, target = estimate(**given, **SETTINGS)
        np.testing.assert_allclose(advantage, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(target, expected + columns["value"], rtol=0, atol=1e-5)
        surrogate, target = estimate(**given, **SETTINGS, ratio=torch.from_numpy(ratio), rho_clip=1.2, c_clip=1.1)
        np.testing.assert_allclose(target, traced + columns["value"], rtol=0, atol=1e-5)
        assert not surrogate[~tensors["mask"]].any()
        last = mask[:, -1]  # where nothing follows the surrogate is the error before it is weighed
        weighed = surrogate[:, -1].numpy() * ratio[:, -1].clip(max=1.2)
        np.testing.assert_allclose(weighed[last], traced[last, -1], rtol=1e-4, atol=1e-5)
