"""Environments written in torch: the row convention, against the native engine and by hand, on every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from torch import Tensor

import fugu
from fugu.emulation.tensor import Uniform
from fugu.errors import CallOrderError, ConfigError, SpaceError
from fugu.spaces.views import leaf_tensors

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CARTPOLE = f"{Path(__file__).parents[2] / 'examples' / 'tensor_env.py'}:CartPole"


class Duel:
    """Two agents add their choices to a sum that also drifts by chance; 4 or more ends the episode, after 3 steps it is cut."""

    observation_space = gs.Dict({"agent": gs.Discrete(2), "sum": gs.Box(-np.inf, np.inf, (1,), np.float32)})
    action_space = gs.Discrete(3)
    num_agents, time_limit, name = 2, 3, "duel"

    def __init__(self, drift: float = 0.0) -> None:
        self.drift = drift

    def reset(self, n: int, uniform: Uniform) -> dict[str, Tensor]:
        return {"sum": torch.floor(2 * uniform())}

    def step(self, state: dict[str, Tensor], action: Tensor, uniform: Uniform) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        total = state["sum"] + action.sum(1) + self.drift * uniform()
        return {"sum": total}, action * torch.tensor([1.0, -1.0], device=action.device), total >= 4

    def observe(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        agent = torch.arange(2, device=state["sum"].device).expand(len(state["sum"]), 2)
        return {"agent": agent, "sum": state["sum"][:, None, None].expand(-1, 2, 1)}

    def action_mask(self, state: dict[str, Tensor]) -> Tensor:
        one = torch.stack([torch.ones_like(state["sum"]), state["sum"] < 3, state["sum"] < 2], 1).bool()
        return one[:, None].expand(-1, 2, 3)

    def log(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sum": state["sum"]}


@pytest.mark.parametrize("device", DEVICES)
def test_cartpole_in_torch_is_the_native_one(device: str) -> None:
    """Same seed: the same first rows to the bit; afterwards torch's sine and the native one differ in the last,
    and a pole on end makes more of it from step to step."""
    vec, host = fugu.vector.make(CARTPOLE, 200, device=device), fugu.vector.make("cartpole", 200)
    rows = vec.rows()
    vec.reset(4, rows)
    host.reset(seed=4)
    np.testing.assert_array_equal(rows.obs.cpu(), host.rows.obs)
    random = np.random.default_rng(0)
    for t in range(150):
        action = random.integers(0, 2, 200)
        vec.step(torch.from_numpy(action).to(device), rows)
        host.step(action)
        np.testing.assert_allclose(rows.obs.cpu(), host.rows.obs, atol=1e-3, err_msg=str(t))
        for name in ("reward", "terminated", "truncated", "first", "mask"):
            np.testing.assert_array_equal(getattr(rows, name).cpu(), getattr(host.rows, name), err_msg=f"{t} {name}")
    expected, got = host.drain_log(), vec.drain_log()
    assert got == expected and got.episodes > 1000


@pytest.mark.parametrize("device", DEVICES)
def test_rows_follow_the_convention(device: str) -> None:
    vec = fugu.vector.make(Duel, 2, device=device)
    rows = vec.rows()
    vec.reset([0, 0], rows)
    sums = vec.obs_layout.views(rows.obs.cpu().numpy())["sum"]
    start = int(sums[0, 0])
    assert rows.first.all() and rows.mask.all() and start in (0, 1)
    assert vec.obs_layout.views(rows.obs.cpu().numpy())["agent"].tolist() == [0, 1, 0, 1]

    def step(*action: int) -> dict[str, Any]:
        vec.step(torch.tensor(action, device=device), rows)
        seen = {
            name: getattr(rows, name).cpu().numpy().copy() for name in ("reward", "terminated", "truncated", "first", "mask")
        }
        seen = {name: column.tolist() for name, column in seen.items()}
        seen["sum"] = vec.obs_layout.views(rows.obs.cpu().numpy())["sum"][:, 0].tolist()
        seen["action_mask"] = rows.action_mask.cpu().numpy().astype(int).tolist()
        return seen

    now = step(2, 2, 0, 0)  # world 0 reaches 4 at once, world 1 stays
    assert now["reward"] == [2, -2, 0, 0] and now["terminated"] == [True, True, False, False] and not any(now["truncated"])
    assert now["mask"] == [False, False, True, True] and now["sum"] == [start + 4] * 2 + [start] * 2
    assert now["action_mask"] == [[1, 1, 1]] * 4  # all open where nobody acts, and below 2
    now = step(2, 2, 1, 1)  # world 0 starts anew, its actions ignored
    assert now["reward"] == [0, 0, 1, -1] and now["first"] == [True, True, False, False] and all(now["mask"])
    assert now["sum"][0] in (0, 1) and now["sum"][2] == start + 2 and not any(now["terminated"])
    assert now["action_mask"][2] == [1, start + 2 < 3, 0]
    now = step(0, 0, 0, 0)  # the third step of world 1
    assert now["truncated"] == [False, False, True, True] and now["mask"] == [True, True, False, False]
    log = vec.drain_log()
    assert (log.episodes, log.mean_return, log.mean_length) == (4, 0.0, (2 * 1 + 2 * 3) / 4)
    assert log.mean_values == {"sum": ((start + 4) + (start + 2)) / 2}
    assert vec.drain_log().episodes == 0


def test_chance_goes_on_from_step_to_step_and_begins_again_with_a_seed() -> None:
    vec = fugu.vector.make(Duel, 3, env_kwargs={"drift": 0.7}, device="cpu")
    rows, seen = vec.rows(), []
    for seed in (8, 8, None):
        vec.reset(seed, rows)
        for _ in range(2):
            vec.step(torch.zeros(6, dtype=torch.int64), rows)
            seen.append(vec.obs_layout.views(rows.obs.numpy())["sum"][0, 0] % 1)
    assert seen[:2] == seen[2:4] != seen[4:]
    assert abs(seen[1] - 2 * seen[0]) % 1 > 1e-3  # not the same draw twice


def record(vec: Any, steps: int) -> list[bytes]:
    actions = np.random.default_rng(0).integers(0, 3, (steps, vec.num_agents))
    columns = ("obs", "reward", "terminated", "truncated", "first", "mask", "action_mask")
    seen = []
    if isinstance(vec, fugu.vector.VecEnv):
        vec.async_reset(seed=6)
        for action in actions:
            rows = vec.recv()
            seen.append(b"".join(getattr(rows, name).tobytes() for name in columns))
            vec.send(action)
        vec.recv()
        return seen
    rows = vec.rows()
    vec.reset(6, rows)
    for action in actions:
        seen.append(b"".join(getattr(rows, name).numpy().tobytes() for name in columns))
        vec.step(torch.from_numpy(action), rows)
    return seen


@pytest.mark.slow
def test_all_backends_give_the_same_rows() -> None:
    settings = {"env_kwargs": {"drift": 0.7}}
    on_device = record(fugu.vector.make(Duel, 6, device="cpu", **settings), 40)
    assert len(set(on_device)) > 30
    for backend in ({}, {"backend": "serial", "on_error": "restart"}, {"backend": "process", "num_workers": 2}):
        with fugu.vector.make(Duel, 6, **backend, **settings) as vec:
            assert record(vec, 40) == on_device, backend
            if not backend:
                assert "Tensors" in repr(vec) and vec.can_snapshot


def test_batches_are_stepped_apart() -> None:
    with fugu.vector.make(Duel, 4, batch_size=2, backend="serial") as vec, fugu.vector.make(Duel, 4) as whole:
        vec.async_reset(seed=1)
        whole.reset(seed=1)
        for _ in range(7):
            for part in vec.groups:
                np.testing.assert_array_equal(vec.recv().obs, whole.rows.obs[part])
                vec.send(np.ones(4, np.int64))
            whole.step(np.ones(8, np.int64))
        assert vec.drain_log().episodes == whole.drain_log().episodes == 2 * 8


@pytest.mark.parametrize("device", [None, "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_restored_snapshot_goes_on_as_the_first_time(device: str | None) -> None:
    def fresh() -> Any:
        return fugu.vector.make(Duel, 3, env_kwargs={"drift": 0.7}, device=device)

    def go_on(vec: Any) -> list[bytes]:
        seen = []
        for _ in range(20):
            if device is None:
                vec.unpark()
                vec.send(np.ones(6, np.int64))
                seen.append(vec.recv().obs.tobytes())
                vec.park()
            else:
                vec.step(torch.ones(6, dtype=torch.int64, device=device), rows)
                seen.append(rows.obs.cpu().numpy().tobytes())
        return seen

    vec = fresh()
    if device is None:
        vec.async_reset(seed=2)
        vec.recv()
        vec.park()
    else:
        rows = vec.rows()
        vec.reset(2, rows)
    go_on(vec)
    saved = vec.snapshot()
    expected = go_on(vec)
    other = fresh()
    other.restore(saved)
    assert go_on(other) == expected


def test_the_checker_takes_them_and_finds_what_is_wrong() -> None:
    report = fugu.check_env(Duel, steps=100)
    assert report.ok and report.facts["kind"] == "TensorEnv", report

    class NaN(Duel):
        def observe(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
            return {**super().observe(state), "sum": torch.full((len(state["sum"]), 2, 1), torch.nan)}

    assert not fugu.check_env(NaN, steps=20).ok


def test_mistakes_are_named() -> None:
    class Short(Duel):
        def reset(self, n: int, uniform: Uniform) -> dict[str, Tensor]:
            return {"sum": torch.zeros(1)}

    class Flat(Duel):
        def step(self, state: dict[str, Tensor], action: Tensor, uniform: Uniform) -> Any:
            return state, torch.zeros(len(state["sum"])), state["sum"] > 9

    with pytest.raises(SpaceError, match=r"state 'sum' must be a tensor \[4, ...\]"):
        fugu.vector.make(Short, 4, device="cpu")
    vec = fugu.vector.make(Flat, 4, device="cpu")
    rows = vec.rows()
    vec.reset(0, rows)
    with pytest.raises(SpaceError, match=r"expected reward \[4, 2\]"):
        vec.step(torch.zeros(8, dtype=torch.int64), rows)
    with pytest.raises(CallOrderError, match="nothing to save"):
        fugu.vector.make(Duel, 2, device="cpu").snapshot()
    with fugu.vector.make(Duel, 2) as one, pytest.raises(ConfigError, match="computes all worlds at once"):
        one.reset()
        one.get_attr("drift")


class Asking(Duel):
    """Looks at a number on the way, which no graph can hold."""

    def step(self, state: dict[str, Tensor], action: Tensor, uniform: Uniform) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        return super().step(state, action if action.sum() > 3 else action + 0, uniform)


class Writing(Duel):
    """Changes the state it is given instead of making another."""

    def step(self, state: dict[str, Tensor], action: Tensor, uniform: Uniform) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        state["sum"].add_(action.sum(1) + self.drift * uniform())
        return state, action * torch.tensor([1.0, -1.0], device=action.device), state["sum"] >= 4


def played(env: Any, num_envs: int, device: str, compile: bool, steps: int = 60, **settings: Any) -> tuple[list[Any], Any]:
    """Rows of a play in which actions come from inside and outside of inference mode and rows go to changing places."""
    with fugu.vector.make(env, num_envs, device=device, compile=compile, **settings) as vec:
        slab, seen = [vec.rows() for _ in range(3)], []
        vec.reset(7, slab[0])
        generator = torch.Generator(device).manual_seed(0)
        for t in range(steps):
            with torch.inference_mode(t % 2 == 0):
                action = torch.randint(0, vec.action_space.n, (vec.num_agents,), generator=generator, device=device)
            rows = slab[t % 3]
            vec.step(action, rows)
            columns = [getattr(rows, name) for name in ("reward", "terminated", "truncated", "first", "mask")]
            columns += leaf_tensors(vec.obs_layout, rows.obs)  # numbers as numbers: their bytes differ by rounding
            seen.append([column.cpu().clone() for column in columns])
        return seen, vec.drain_log()


COMPILED = [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", COMPILED)
@pytest.mark.parametrize("env", [CARTPOLE, Duel, Writing])
def test_a_compiled_step_does_what_the_plain_one_does(env: Any, device: str, recwarn: pytest.WarningsRecorder) -> None:
    """Random numbers, flags and counts to the bit; numbers up to what rounding makes of a pole on end in an episode."""
    settings = {"env_kwargs": {"drift": 0.7}} if env is not CARTPOLE else {}
    (plain, log), (made, same_log) = (played(env, 300, device, compile, **settings) for compile in (False, True))
    for t, (one, other) in enumerate(zip(plain, made, strict=True)):
        for a, b in zip(one, other, strict=True):
            if a.is_floating_point():
                torch.testing.assert_close(b, a, rtol=0, atol=1e-4, msg=f"step {t}")
            else:
                assert torch.equal(a, b), t
    assert log.episodes == same_log.episodes > 300 and log.mean_length == same_log.mean_length
    assert not [w for w in recwarn if "could not be used" in str(w.message)]


@pytest.mark.parametrize("device", COMPILED)
def test_a_compiled_run_goes_on_exactly(device: str) -> None:
    def rows(cut: int | None) -> list[Tensor]:
        vec = fugu.vector.make(CARTPOLE, 50, device=device, compile=True)
        at, seen = vec.rows(), []
        vec.reset(1, at)
        for t in range(40):
            if t == cut:
                saved = vec.snapshot()
                vec = fugu.vector.make(CARTPOLE, 50, device=device, compile=True)
                vec.restore(saved)
            vec.step(torch.full((50,), t % 2, device=device), at)
            seen.append(at.obs.cpu().clone())
        return seen

    assert all(torch.equal(a, b) for a, b in zip(rows(None), rows(20), strict=True))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_cannot_be_compiled_runs_as_it_is_and_says_why(device: str) -> None:
    with pytest.warns(RuntimeWarning, match=r"duel: torch.compile could not be used.*slower \(") as caught:
        made, log = played(Asking, 5, device, True)
    assert len([w for w in caught if "could not be used" in str(w.message)]) == 1
    plain, same_log = played(Duel, 5, device, False)
    assert log == same_log
    assert all(torch.equal(a, b) for one, other in zip(made, plain, strict=True) for a, b in zip(one, other, strict=True))


def test_a_compiler_that_computes_something_else_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(function: Any, **_: Any) -> Any:
        def run(*args: Any) -> Any:
            after = function(*args)
            return after._replace(rows={**after.rows, "first": ~after.rows["first"]})

        return run

    monkeypatch.setattr(torch, "compile", wrong)
    with pytest.warns(RuntimeWarning, match=r"100.0% of what it computes is wrong"):
        made, _ = played(Duel, 6, "cpu", True)
    plain, _ = played(Duel, 6, "cpu", False)
    assert all(torch.equal(a, b) for one, other in zip(made, plain, strict=True) for a, b in zip(one, other, strict=True))


def test_only_environments_in_torch_that_are_stepped_at_once_are_compiled() -> None:
    with pytest.raises(ConfigError, match="compile=True is for environments in torch"):
        fugu.vector.make("cartpole", 4, compile=True)
    with pytest.raises(ConfigError, match="compile=True steps all worlds at once"):
        fugu.vector.make(Duel, 4, compile=True, num_workers=2)
    with pytest.raises(ConfigError, match="compile='yes' must be true, false or left out"):
        fugu.vector.make(Duel, 4, compile="yes")
