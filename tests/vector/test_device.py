"""Environments on a device against the CPU's engine: the same seed and actions give the same bytes.

Device "cpu" emulates the kernels; what is marked gpu compares a card with the CPU. Every environment of the package is mere integer
arithmetic, sums, products, divisions and roots, none of which is contracted, so equality to the byte is asked of all of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fugu
from fugu.cli.main import main
from fugu.emulation.actions import action_rows, allowed
from fugu.emulation.native import descriptions, names
from fugu.errors import CallOrderError, ConfigError, GpuError, SpaceError
from fugu.gpu.libraries import nvrtc
from fugu.gpu.module import EXACT, cubin
from fugu.vector.device import DeviceRows, DeviceVec
from fugu.vector.device_worlds import KERNELS, kernel_source

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
COLUMNS = ("obs", "reward", "terminated", "truncated", "first", "mask", "action_mask", "cost")
WORLDS = 37
"""a whole warp and a part of one"""


def assert_same_rows(host: fugu.emulation.env.Rows, rows: DeviceRows, where: object) -> None:
    for name in COLUMNS:
        expected, got = getattr(host, name), getattr(rows, name)
        if got is None:
            assert expected is None or (name == "action_mask" and expected.all()), where
        else:
            assert expected.tobytes() == got.cpu().numpy().tobytes(), (where, name)


def assert_same_log(expected: object, got: object) -> None:
    """Sums of the same numbers in another order."""
    assert got[0] == expected[0]
    np.testing.assert_allclose(got[1:3], expected[1:3], rtol=1e-9)
    assert got[3] == pytest.approx(expected[3], rel=1e-6)
    assert got[4] == pytest.approx(expected[4], rel=1e-6)


def play_both(env: str, device: str, steps: int, worlds: int = WORLDS, **settings: float) -> int:
    """Compare ``steps`` steps; how many episodes ended."""
    on_device = fugu.vector.make(env, worlds, backend="device", device=device, env_kwargs=settings)
    host = fugu.vector.make(env, worlds, backend="native", num_workers=1, env_kwargs=settings)
    rows = on_device.rows()
    host.reset(seed=5)
    on_device.reset(5, rows)
    deck = action_rows(host.action_space, 97 * host.num_agents, 0).reshape(97, host.num_agents, *host.action_layout.row_shape)
    for t in range(steps):
        assert_same_rows(host.rows, rows, (env, t))
        action = np.ascontiguousarray(allowed(deck[t % 97], host.rows, host.action_space))
        host.step(action)
        on_device.step(torch.from_numpy(action).to(device), rows)
    assert_same_rows(host.rows, rows, (env, steps))
    log = host.drain_log()
    assert_same_log(log, on_device.drain_log())
    assert on_device.drain_log().episodes == 0
    return log.episodes


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("env", names())
def test_rows_are_those_of_the_cpu_engine(env: str, device: str) -> None:
    """With a short time limit, so that every environment is truncated, and starts anew, often."""
    assert play_both(env, device, 120, max_steps=17) > WORLDS


@pytest.mark.slow
@pytest.mark.parametrize("env", names())
def test_a_thousand_steps_are_those_of_the_cpu_engine(env: str) -> None:
    assert play_both(env, "cpu", 1000) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("env", names())
def test_a_thousand_steps_on_a_gpu_are_those_of_the_cpu_engine(env: str) -> None:
    assert play_both(env, "cuda", 1000, worlds=1013) > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("env", ["cartpole", "connect4", "snake"])
def test_blocks_may_be_less_than_full(env: str, device: str) -> None:
    """130 worlds leave whole warps of the last block without any."""
    assert play_both(env, device, 40, worlds=130, max_steps=9) > 130


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_any_alignment_are_written(device: str) -> None:
    """Rows of 49 bytes in a slab of 5 worlds start anywhere."""
    vec = fugu.vector.make("maze", 5, backend="device", device=device)
    host = fugu.vector.make("maze", 5, backend="native")
    host.reset(seed=1)
    slab = torch.full((8, 5, 7, 7), 255, dtype=torch.uint8, device=device)
    for t in range(8):
        rows = vec.rows()
        rows.obs = slab[t]
        vec.reset(1, rows)
    np.testing.assert_array_equal(slab.cpu().numpy(), np.broadcast_to(host.rows.obs, slab.shape))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("env", ["snake", "cartpole"])
def test_a_restored_snapshot_goes_on_as_the_first_time(env: str, device: str) -> None:
    vec = fugu.vector.make(env, 5, backend="device", device=device, seed=9)
    rows = vec.rows()
    vec.reset(None, rows)
    action = torch.ones(vec.num_agents, dtype=torch.int64, device=device)

    def go_on() -> list[bytes]:
        seen = []
        for _ in range(40):
            vec.step(action, rows)
            seen.append(rows.obs.cpu().numpy().tobytes() + rows.first.cpu().numpy().tobytes())
        return seen

    go_on()
    saved = vec.snapshot()
    expected = go_on()
    other = fugu.vector.make(env, 5, backend="device", device=device, seed=1)
    other.restore(saved)
    vec = other
    assert go_on() == expected
    with pytest.raises(ConfigError, match="not of 4 environments"):
        fugu.vector.make(env, 4, backend="device", device=device).restore(saved)
    before = vec.snapshot()["state"]
    words = saved["state"].view(-1)
    words[-20:] = -1  # lengths, among others
    for bad, why in (
        (saved, f"is none that {env} can be in"),
        ({"state": before.float()}, "float32"),
        ({}, "'state' of the saved state is missing"),
        ({"state": before, "more": before}, "'more' of the saved state is unknown"),
    ):
        with pytest.raises(ConfigError, match=why):
            vec.restore(bad)
        assert torch.equal(vec.snapshot()["state"], before)


@pytest.mark.gpu
@pytest.mark.parametrize("env", ["cartpole", "snake", f"{Path(__file__).parents[2] / 'examples' / 'tensor_env.py'}:CartPole"])
def test_a_cuda_graph_captures_steps(env: str) -> None:
    """Two steps captured, replayed 20 times, against 40 steps one by one."""
    captured, eager = (fugu.vector.make(env, 500, device="cuda", seed=2) for _ in range(2))
    rows, expected = [captured.rows(), captured.rows()], eager.rows()
    action = torch.ones(captured.num_agents, dtype=torch.int64, device="cuda")
    captured.reset(None, rows[0])
    eager.reset(None, expected)
    start = captured.snapshot()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        captured.step(action, rows[0])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in rows:
            captured.step(action, out)
    captured.restore(start)
    captured.drain_log()
    for _ in range(20):
        graph.replay()
    for _ in range(40):
        eager.step(action, expected)
    assert torch.equal(rows[1].obs, expected.obs) and torch.equal(rows[1].first, expected.first)
    log = captured.drain_log()
    assert log == eager.drain_log() and log.episodes > 0


def test_without_a_seed_worlds_go_on_with_their_random_numbers() -> None:
    vec, host = fugu.vector.make("cartpole", 4, backend="device", device="cpu", seed=3), fugu.vector.make("cartpole", 4, seed=3)
    rows = vec.rows()
    for seed in (None, None, 8, None):
        vec.reset(seed, rows)
        host.reset(seed)
        assert_same_rows(host.rows, rows, seed)


@pytest.mark.parametrize("device", DEVICES)
def test_a_choice_outside_its_space_counts_as_the_nearest(device: str) -> None:
    vec = fugu.vector.make("connect4", 2, backend="device", device=device)
    rows, high = [vec.rows(), vec.rows()], torch.tensor([[6] * 4, [2**40, 7, 99, 6]], device=device)
    for action, out in zip(high, rows, strict=True):
        vec.reset(1, out)
        vec.step(action, out)
    assert torch.equal(rows[0].obs, rows[1].obs)
    vec.reset(1, rows[0])
    vec.step(torch.full((4,), -5, device=device), rows[0])
    assert not torch.equal(rows[0].obs, rows[1].obs)


@pytest.mark.parametrize("device", DEVICES)
def test_a_header_of_ones_own_runs_on_a_device(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert main(["new", "env", "--native", "my_env.h"]) == 0
    assert play_both("my_env.h", device, 150) > 0


@pytest.mark.parametrize("env", [*names(), "my_env.h"])
def test_the_real_compiler_takes_every_environment(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        nvrtc()
    except GpuError:
        pytest.skip("no NVRTC here")
    monkeypatch.chdir(tmp_path)
    assert env != "my_env.h" or main(["new", "env", "--native", env]) == 0
    source = kernel_source(env)
    image = cubin(f"{source.text}{KERNELS}", "sm_90", EXACT, source.files, env).read_bytes()
    assert b"step_worlds" in image and b"reset_worlds" in image


def test_masks_are_kept_only_where_an_environment_offers_them() -> None:
    for env in names():
        vec = fugu.vector.make(env, 2, backend="device", device="cpu")
        assert (vec.num_choices > 0) == descriptions()[env]["masks_actions"] == (vec.rows().action_mask is not None)


def test_rows_and_actions_that_do_not_fit_are_refused() -> None:
    vec = fugu.vector.make("cartpole", 4, backend="device", device="cpu")
    assert isinstance(vec, DeviceVec) and "NativeDevice on cpu" in repr(vec)
    rows, action = vec.rows(), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(CallOrderError, match="before reset"):
        vec.step(action, rows)
    vec.reset(0, rows)
    with pytest.raises(SpaceError, match=r"action: expected torch.int64\[4\] on cpu, got torch.int32\[4\]"):
        vec.step(action.int(), rows)
    rows.reward = torch.zeros(4, 2)[:, 0]
    with pytest.raises(SpaceError, match="reward: rows must lie in one piece"):
        vec.step(action, rows)
    rows.reward = torch.zeros(3)
    with pytest.raises(SpaceError, match=r"reward: expected torch.float32\[4\]"):
        vec.step(action, rows)
    rows = vec.rows()
    rows.action_mask = torch.ones(4, 2, dtype=torch.bool)
    with pytest.raises(SpaceError, match="offers none"):
        vec.step(action, rows)
    vec.close()
    with pytest.raises(CallOrderError, match="closed"):
        vec.step(action, vec.rows())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "device"}, "needs a device; try device='cuda'"),
        ({"backend": "device", "device": "tpu"}, "must be cuda, cuda:N or cpu"),
        ({"backend": "native", "device": "cuda"}, "is for backend='device'"),
        ({"device": "cpu", "num_workers": 2}, "num_workers=2 is of no use"),
        ({"device": "cpu", "batch_size": 2}, "batch_size=2 is of no use"),
        ({"device": "cpu", "on_error": "restart"}, "on_error='restart' is of no use"),
    ],
)
def test_settings_that_make_no_sense_on_a_device_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fugu.vector.make("cartpole", 4, **settings)


def test_what_cannot_run_on_a_device_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"neither a C\+\+ environment \(acrobot(.|\n)*nor a TensorEnv(.|\n)*backend='process'"
    ):
        fugu.vector.make("CartPole-v1", 4, backend="device", device="cpu")
    with pytest.raises(ConfigError, match="neither"):
        fugu.vector.make("gymnasium.envs.classic_control:CartPoleEnv", 4, backend="device", device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(GpuError, match="needs an NVIDIA GPU(.|\n)*fugu doctor"):
        fugu.vector.make("cartpole", 4, backend="device", device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(GpuError, match="there is one GPU"):
        fugu.vector.make("cartpole", 4, backend="device", device="cuda:1")
