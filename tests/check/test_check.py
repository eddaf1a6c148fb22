"""check_env: one tiny broken environment per kind of defect; each must be named, at the right leaf, with a fix."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs

import fugu
from fugu.check import CheckFailed, Finding, Report
from fugu.emulation import Rows, check_env
from fugu.errors import ConfigError


class Room(gymnasium.Env):
    """A sound environment with a nested observation; the broken ones below each change one thing."""

    observation_space = gs.Dict(
        map=gs.Box(0, 255, (3, 3), np.uint8), pos=gs.Box(-1, 1, (2,), np.float32), bag=gs.Tuple([gs.Discrete(3), gs.Text(4)])
    )
    action_space = gs.Discrete(3)
    length = 10

    def __init__(self, size: int = 3) -> None:
        self.size = size

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.observe(), self.reward(), self.time >= self.length, False, {}

    def observe(self) -> Any:
        grid = self.np_random.integers(0, 256, (3, 3), np.uint8)
        pos = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"map": grid, "pos": pos, "bag": (int(self.np_random.integers(3)), "key")}

    def reward(self) -> Any:
        return float(self.np_random.random())


def room(**changes: Any) -> type[Room]:
    """``Room`` with some methods or attributes replaced."""
    return type("Broken", (Room,), changes)


def observing(**leaves: Any) -> type[Room]:
    """``Room`` whose observation has some leaves replaced: by a value, or by a function of the env."""

    def observe(self: Room) -> Any:
        obs = Room.observe(self)
        for name, leaf in leaves.items():
            obs[name] = leaf(self) if callable(leaf) else leaf
            if obs[name] is None:
                del obs[name]
        return obs

    return room(observe=observe)


def stepping(change: Any) -> type[Room]:
    """``Room`` whose step result ``[obs, reward, terminated, truncated, info]`` goes through ``change``."""
    return room(step=lambda self, action: tuple(change(list(Room.step(self, action)))))


def replaced(index: int, value: Any) -> Any:
    def change(result: list) -> list:
        result[index] = value
        return result

    return change


def later(step: int, bad: Any, good: Any = None) -> Any:
    """A leaf that turns bad at some step."""
    return lambda env: bad if env.time >= step else (np.zeros_like(bad) if good is None else good)


def with_space(part: Any, name: str = "observation_space") -> type[Room]:
    return room(**{name: part})


class GlobalSeed(Room):
    """Seeds the global generator: repeatable alone, not beside a second instance."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        if seed is not None:
            np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed=seed)

    def reward(self) -> float:
        return float(np.random.rand())  # noqa: NPY002


class OldForm:
    """An environment of the years before Gymnasium: no base class, four values, observation alone from reset."""

    observation_space = gs.Box(-1, 1, (2,), np.float32)
    action_space = gs.Discrete(2)

    def reset(self) -> np.ndarray:
        self.time = 0
        return np.zeros(2, np.float32)

    def step(self, action: int) -> tuple:
        self.time += 1
        return np.full(2, self.time / 10, np.float32), 1.0, self.time == 10, {}


class Reused(Room):
    """Returns the same array again and again, and writes into it."""

    observation_space = gs.Box(0, 1e6, (2,), np.float32)

    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(2, np.float32)

    def observe(self) -> np.ndarray:
        self.buffer[0] += 1
        return self.buffer


class Leak(Room):
    def __init__(self) -> None:
        super().__init__()
        self.history: list[float] = []

    def step(self, action: Any) -> Any:
        self.history.append(float(self.np_random.random()))
        return super().step(action)


class Masked(Room):
    """``mask`` is the action mask it gives in its infos."""

    mask: Any = np.ones(3, np.int8)

    def reset(self, **kwargs: Any) -> Any:
        obs, _ = super().reset(**kwargs)
        return obs, {"action_mask": self.mask}

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"action_mask": self.mask}


def constant_seed(self: Room, *, seed: int | None = None, options: dict | None = None) -> Any:
    return Room.reset(self, seed=None if seed is None else 7)


def no_seed(self: Room) -> Any:
    return Room.reset(self)


def no_options(self: Room, *, seed: int | None = None) -> Any:
    return Room.reset(self, seed=seed)


def crash_on_two(self: Room, action: int) -> Any:
    if action == 2:
        return 1 / 0
    return Room.step(self, action)


def crash_after_ending(self: Room, *, seed: int | None = None, options: dict | None = None) -> Any:
    if getattr(self, "time", 0) >= self.length:
        raise RuntimeError("the level is gone")
    return Room.reset(self, seed=seed)


def crash_in_mid_episode(self: Room, *, seed: int | None = None, options: dict | None = None) -> Any:
    if 0 < getattr(self, "time", 0) < self.length:
        raise RuntimeError("still running")
    return Room.reset(self, seed=seed)


def slow_reset(self: Room, *, seed: int | None = None, options: dict | None = None) -> Any:
    threading.Event().wait(0.008)
    return Room.reset(self, seed=seed)


SIZES = itertools.count(2)


def new_size(self: Room) -> None:
    self.observation_space = gs.Box(0, 1, (next(SIZES),), np.float32)


def zeros_of_space(self: Room) -> Any:
    return np.zeros(self.observation_space.shape, np.float32)


GRID = np.zeros((3, 3), np.float64)
NAN = np.array([0, np.nan], np.float32)

# name -> (environment, severity, where, part of the problem, part of the fix)
DEFECTS: dict[str, tuple[Any, str, str, str, str]] = {
    "dtype": (observing(map=GRID), "error", "obs/map", "uint8 (3, 3), reset() returned float64 (3, 3)", "astype(np.uint8)"),
    "float64 for float32": (observing(pos=np.zeros(2)), "error", "obs/pos", "returned float64 (2,)", "cast=True"),
    "shape": (observing(map=np.zeros((9,), np.uint8)), "error", "obs/map", "returned uint8 (9,)", "obs.reshape((3, 3))"),
    "shape of another size": (observing(map=np.zeros((2, 2), np.uint8)), "error", "obs/map", "(2, 2)", "shape=(2, 2)"),
    "not an array": (observing(map="wall"), "error", "obs/map", "returned str 'wall'", "np.asarray"),
    "a list": (observing(pos=[0.0, 0.5]), "note", "obs/pos", "list [0.0, 0.5]", "np.array(..., dtype=np.float32)"),
    "key missing": (observing(pos=None), "error", "obs/pos", "there is a key 'pos', reset() returned none", "return the key"),
    "key too many": (observing(hint=1), "error", "obs/hint", "a key 'hint' besides", "declare 'hint'"),
    "not a dict": (room(observe=lambda self: 3), "error", "obs", "a dict with the keys", "return a dict"),
    "tuple too short": (observing(bag=(1,)), "error", "obs/bag", "a tuple of 2", "with 2 parts"),
    "discrete out of range": (observing(bag=(3, "key")), "error", "obs/bag/0", "between 0 and 2, reset() returned 3", "wider"),
    "discrete as float": (observing(bag=(1.0, "key")), "error", "obs/bag/0", "float 1.0", "int(...)"),
    "text too long": (
        observing(bag=(1, "keyring")),
        "error",
        "obs/bag/1",
        "1 to 4 characters, reset() returned 7",
        "max_length=7",
    ),
    "text outside charset": (observing(bag=(1, "a b")), "error", "obs/bag/1", "' '", "charset"),
    "box out of bounds late": (
        observing(pos=later(4, np.array([0, 7], np.float32))),
        "error",
        "obs/pos",
        "between -1 and 1, step() returned 7, first at step 4",
        "wider bounds",
    ),
    "box out of bounds by rounding": (
        observing(pos=np.array([0, 1.000001], np.float32)),
        "warning",
        "obs/pos",
        "between -1 and 1",
        "np.clip",
    ),
    "NaN in obs": (observing(pos=later(5, NAN)), "error", "obs/pos", "nan at index [1], first at step 5", "division by zero"),
    "NaN reward": (stepping(replaced(1, float("nan"))), "error", "reward", "returned nan, first at step 1", "division by zero"),
    "unscored": (
        room(step=stepping(replaced(1, float("nan"))).step, metadata={"unscored_rewards": True}),
        "note",
        "reward",
        "could not be scored",
        "--algorithm grpo",
    ),
    "infinite reward": (stepping(replaced(1, -np.inf)), "error", "reward", "returned -inf", "division by zero"),
    "reward array": (stepping(replaced(1, np.zeros(1))), "error", "reward", "array float64 (1,)", "float(reward)"),
    "reward none": (stepping(replaced(1, None)), "error", "reward", "NoneType None", "return a float"),
    "huge reward": (stepping(replaced(1, -5e4)), "warning", "reward", "-50000", "scale the reward"),
    "no reward": (stepping(replaced(1, 0.0)), "note", "reward", "0 on all 120 steps", "rare by design"),
    "flag as int": (stepping(replaced(3, 0)), "note", "truncated", "int 0", "bool(truncated)"),
    "flag as none": (stepping(replaced(2, None)), "error", "terminated", "NoneType None", "bool(terminated)"),
    "info none": (stepping(replaced(4, None)), "error", "info", "NoneType None, expected a dict", "return {}"),
    "never ends": (room(length=10**9), "note", "terminated", "no episode ended within 120 steps", "TimeLimit"),
    "three values": (stepping(lambda r: r[:3]), "error", "step()", "got a tuple of 3", "terminated, truncated, info"),
    "four values": (OldForm, "note", "step()", "old four values", "terminated, truncated, info"),
    "obs alone from reset": (OldForm, "note", "reset()", "returns the observation alone", "obs, info"),
    "takes no seed": (room(reset=no_seed), "warning", "reset()", "takes no seed", "seed=None"),
    "takes no options": (room(reset=no_options), "note", "reset()", "takes no options", "options=None"),
    "global seed": (GlobalSeed, "error", "determinism", "reward differs between two instances", "self.np_random"),
    "unseeded": (
        observing(bag=lambda env: (int(np.random.default_rng().integers(3)), "key")),
        "error",
        "determinism",
        "obs/bag/0 differs",
        "self.np_random",
    ),
    "constant seed": (room(reset=constant_seed), "warning", "reset()", "seeds 0 and 1 gave the same", "pass the seed on"),
    "buffer reused": (Reused, "note", "obs", "was changed by a later call", "obs.copy()"),
    "leak": (Leak, "warning", "memory", "objects", "clear histories in reset()"),
    "mask too short": (
        type("M", (Masked,), {"mask": np.ones(2, np.int8)}),
        "error",
        "action_mask",
        "2 entries from reset() for the 3 choices",
        "np.ones(3, np.int8)",
    ),
    "nothing allowed": (
        type("M", (Masked,), {"mask": np.zeros(3, np.int8)}),
        "error",
        "action_mask",
        "no action is allowed",
        "at least one action",
    ),
    "step crashes": (room(step=crash_on_two), "error", "step()", "ZeroDivisionError: division by zero", "every action"),
    "reset crashes": (room(reset=crash_after_ending), "error", "reset()", "after an ending raised RuntimeError", "above"),
    "reset crashes in mid-episode": (
        room(reset=crash_in_mid_episode),
        "error",
        "reset()",
        "in the middle of an episode",
        "above",
    ),
    "constructor crashes": (room(__init__=lambda self: 1 / 0), "error", "__init__", "ZeroDivisionError", "env_kwargs"),
    "close crashes": (room(close=lambda self: 1 / 0), "warning", "close()", "ZeroDivisionError", "safe to call"),
    "slow reset": (room(reset=slow_reset), "note", "reset()", "of the time", "once in __init__"),
    "spaces missing": (lambda: SimpleNamespace(reset=None, step=None), "error", "observation_space", "has no", "__init__"),
    "sequence without maximum": (
        with_space(gs.Dict(a=gs.Sequence(gs.Discrete(2)), b=gs.Discrete(2))),
        "error",
        "observation_space/a",
        "no maximum length",
        "fugu.spaces.bound",
    ),
    "graph": (
        with_space(gs.Dict(g=gs.Graph(gs.Discrete(2), None))),
        "error",
        "observation_space/g",
        "not supported",
        "padded arrays",
    ),
    "complex numbers": (
        with_space(gs.Tuple([gs.Discrete(2), gs.Box(0, 1, (2,), np.float16), _complex := gs.Box(0, 1, (2,))])),
        "error",
        "observation_space/2",
        "is not supported",
        "use a bool, integer or float",
    ),
    "unbounded actions": (
        with_space(gs.Box(-np.inf, np.inf, (2,)), "action_space"),
        "warning",
        "action_space",
        "has no bounds",
        "Box(-1, 1",
    ),
    "spaces differ between instances": (
        room(__init__=new_size, observe=zeros_of_space),
        "error",
        "observation_space",
        "another space",
        "the same spaces",
    ),
}
_complex.dtype = np.dtype(np.complex64)


@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_is_found_at_its_place_with_a_fix(name: str) -> None:
    env, severity, where, problem, fix = DEFECTS[name]
    report = check_env(env, steps=120)
    found = [f for f in report.findings if f.severity == severity and f.where == where]
    assert any(problem in f.problem and fix in f.fix for f in found), f"not found in:\n{report}"
    assert report.ok == (not report.of("error"))


def test_a_sound_environment_has_no_findings() -> None:
    report = check_env(Room, steps=120)
    assert report.findings == [], str(report)


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_environments_of_gymnasium_are_clean(name: str) -> None:
    report = check_env(name, steps=300)
    assert [f for f in report.findings if f.severity != "note"] == [], str(report)


def test_all_defects_are_reported_at_once() -> None:
    def step(self: Room, action: Any) -> Any:
        obs, _, terminated, *_ = Room.step(self, action)
        obs["map"], obs["pos"] = GRID, NAN
        return obs, np.zeros(1), terminated, 2, None

    report = check_env(room(step=step), steps=50)
    places = {f.where for f in report.of("error")}
    assert {"obs/map", "obs/pos", "reward", "truncated", "info"} <= places, str(report)


def test_a_report_reads_like_a_sentence_and_can_be_raised() -> None:
    report = check_env(observing(map=GRID), steps=20)
    expected = (
        "obs/map: space says uint8 (3, 3), reset() returned float64 (3, 3), first at the first reset. "
        "Fix: return obs.astype(np.uint8) or declare Box(..., dtype=np.float64)"
    )
    assert expected in str(report)
    with pytest.raises(CheckFailed, match="obs/map"):
        report.raise_if_failed()
    Report(findings=[Finding("warning", "a", "b", "c")]).raise_if_failed()


class Counted(Room):
    """Counts its instances that are not closed. It is found by name, so a pickled copy counts with the others."""

    opened, alive = 0, 0

    def __init__(self) -> None:
        super().__init__()
        Counted.opened += 1
        Counted.alive += 1

    def close(self) -> None:
        Counted.alive -= 1


class CountedCrash(Counted):
    step = crash_on_two


@pytest.mark.parametrize("env", [Counted, CountedCrash])
def test_every_instance_built_is_closed(env: type[Counted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "opened", 0)
    monkeypatch.setattr(Counted, "alive", 0)
    check_env(env, steps=50)
    assert Counted.opened >= 4 and Counted.alive == 0


def test_a_crash_shows_the_last_lines_of_its_traceback_and_the_action() -> None:
    report = check_env(room(step=crash_on_two), steps=50)
    (crash,) = [f for f in report.of("error") if f.where == "step()"]
    assert "test_check.py" in crash.problem and "return 1 / 0" in crash.problem
    assert "action 2" in crash.problem


def test_bounds_findings_carry_the_extremes_of_the_whole_run() -> None:
    report = check_env(observing(pos=lambda env: np.array([-env.time, 2 * env.time], np.float32)), steps=50)
    (finding,) = [f for f in report.of("error") if f.where == "obs/pos"]
    assert "values from -10 to 20" in finding.problem


def test_every_unusable_part_of_a_space_is_named() -> None:
    space = gs.Dict(a=gs.Sequence(gs.Discrete(2)), b=gs.Discrete(2), c=gs.Tuple([gs.Graph(gs.Discrete(2), None)]))
    report = check_env(with_space(space), steps=5)
    assert {"observation_space/a", "observation_space/c/0"} <= {f.where for f in report.of("error")}


def test_facts_describe_what_the_environment_costs() -> None:
    facts = check_env(Room, steps=100).facts
    assert facts["mean_episode_length"] == 10 and facts["episodes"] >= 9
    assert facts["num_agents"] == 1 and facts["obs_bytes"] > 9 and facts["steps_per_second"] > 100
    assert facts["steps"] == 100 and 0 <= facts["reset_share"] < 1
    assert "Discrete(3)" in facts["action_space"]


def test_a_callable_holding_a_lock_cannot_be_sent_to_a_worker() -> None:
    lock = threading.Lock()
    report = check_env(lambda: (lock, Room())[1], steps=20)
    assert [f.where for f in report.of("error")] == ["pickle"]
    report = check_env(lambda size: Room(), steps=20, env_kwargs={"size": lock})
    assert any("env_kwargs['size']" in f.problem for f in report.of("error"))


def test_a_wrong_constructor_argument_gets_a_suggestion() -> None:
    report = check_env(Room, steps=5, env_kwargs={"sise": 4})
    (finding,) = report.findings
    assert finding.where == "__init__" and "'size'" in finding.fix
    assert check_env(Room, steps=5, env_kwargs={"size": 4}).ok


def test_what_only_the_packer_refuses_is_a_finding_at_its_leaf() -> None:
    class Missions(gs.Space):
        """Allows what it does not declare, as some spaces of other packages do."""

        mission_func, ordered_placeholders = staticmethod(lambda: "go"), None

        def contains(self, x: Any) -> bool:
            return True

    space = gs.Dict({**Room.observation_space.spaces, "task": Missions()})
    env = type("Env", (observing(task="go to the red ball " * 30),), {"observation_space": space})
    report = check_env(env, steps=20)
    (finding,) = [f for f in report.of("error") if f.where == "obs/task"]
    assert "text of 570 characters" in finding.problem


def test_an_episode_limit_known_from_the_registry_is_not_asked_for() -> None:
    assert check_env("Acrobot-v1", steps=20).findings == []


def test_a_name_that_does_not_exist_is_the_callers_mistake() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1"):
        check_env("CartPole-v11")
    with pytest.raises(ConfigError, match="once for each"):
        check_env([Room, Room])


def test_a_file_that_does_not_import_is_a_finding(tmp_path: Any) -> None:
    (tmp_path / "broken_file.py").write_text("import numpy\nx = 1 / 0\n")
    report = check_env(f"{tmp_path}/broken_file.py:Env")
    (finding,) = report.findings
    assert finding.where == "import" and "broken_file.py, line 2: x = 1 / 0" in finding.problem


# --- native environments: checked on the rows they write ---


class Counters:
    """Two agents that count to five, written by the contract."""

    observation_space = gs.Dict(count=gs.Box(0, 5, (1,), np.float32), parity=gs.Discrete(2))
    action_space = gs.Discrete(2)
    num_agents = 2

    def __init__(self) -> None:
        self.layout = fugu.Layout(self.observation_space)

    def reset(self, seed: int | None, out: Rows, options: dict | None = None) -> None:
        self.time = 0
        self.random = np.random.default_rng(seed)
        out.start()
        self.write(out)

    def step(self, action: np.ndarray, out: Rows) -> Any:
        if self.time == 5:
            self.time = 0
            out.start()
        else:
            self.time += 1
            out.reward[...] = self.random.random(2)
            out.terminated[...] = self.time == 5
            out.truncated[...] = False
            out.first[...] = False
            out.mask[...] = self.time < 5
        self.write(out)
        return None

    def write(self, out: Rows) -> None:
        count, parity = self.layout.leaf_views(out.obs)
        count[...] = self.time
        parity[...] = self.time % 2

    def close(self) -> None: ...


def counters(change: Any) -> type[Counters]:
    """``Counters`` whose rows go through ``change(env, out)`` after each step."""

    def step(self: Counters, action: np.ndarray, out: Rows) -> Any:
        result = Counters.step(self, action, out)
        return change(self, out) or result

    return type("Broken", (Counters,), {"step": step})


def bad_parity(env: Counters, out: Rows) -> None:
    env.layout.leaf_views(out.obs)[1][1] = 2


def bad_count(env: Counters, out: Rows) -> None:
    env.layout.leaf_views(out.obs)[0][0] = np.nan


def same_step_restart(env: Counters, out: Rows) -> None:
    if env.time == 5:
        env.time = 0
        out.first[...] = out.mask[...] = True


def forgets_first(env: Counters, out: Rows) -> None:
    out.first[...] = False


def no_action_allowed(env: Counters, out: Rows) -> None:
    assert out.action_mask is not None
    out.action_mask[1] = False


def no_reward_written(self: Counters, action: np.ndarray, out: Rows) -> None:
    self.time += 1
    out.terminated[...] = out.truncated[...] = out.first[...] = False
    out.mask[...] = True
    self.write(out)


def leaves_flags(self: Counters, seed: int | None, out: Rows) -> None:
    self.time, self.random = 0, np.random.default_rng(seed)
    out.first[...] = out.mask[...] = True
    out.reward[...] = 0
    self.write(out)


def late_reward(env: Counters, out: Rows) -> None:
    out.reward[...] = 1


def random_reward(env: Counters, out: Rows) -> None:
    out.reward[0] += float(np.random.default_rng().random()) if env.time else 0


NATIVE_DEFECTS: dict[str, tuple[Any, str, str, str]] = {
    "discrete leaf out of range": (counters(bad_parity), "obs/parity", "(agent 1, step 1)", "wider"),
    "NaN leaf": (counters(bad_count), "obs/count", "nan", "division by zero"),
    "restart on the same step": (counters(same_step_restart), "mask", "ended but its row has mask=True", "out.mask False"),
    "first never set": (counters(forgets_first), "first", "first row after an ending has first=False", "out.first True"),
    "nothing allowed": (counters(no_action_allowed), "action_mask", "no action is allowed at step 1 (agent 1)", "at least one"),
    "reward never written": (
        type("N", (Counters,), {"step": no_reward_written}),
        "reward",
        "never written",
        "write out.reward",
    ),
    "reset leaves flags": (type("N", (Counters,), {"reset": leaves_flags}), "terminated", "left an ending flag", "out.start()"),
    "reward on restart": (counters(late_reward), "reward", "the step that restarts", "write reward 0"),
    "info is no dict": (counters(lambda env, out: ["x"]), "info", "list", "agent index"),
    "not deterministic": (counters(random_reward), "determinism", "reward differs", "self.np_random"),
}


@pytest.mark.parametrize("name", NATIVE_DEFECTS)
def test_each_defect_of_a_native_environment_is_found(name: str) -> None:
    env, where, problem, fix = NATIVE_DEFECTS[name]
    report = check_env(env, steps=30)
    found = [f for f in report.of("error") if f.where == where]
    assert any(problem in f.problem and fix in f.fix for f in found), f"not found in:\n{report}"


def test_a_sound_native_environment_has_no_findings() -> None:
    report = check_env(Counters, steps=60)
    assert report.findings == [], str(report)
    assert report.facts["kind"] == "fugu.Env" and report.facts["num_agents"] == 2
    assert report.facts["mean_episode_length"] == 5


# --- several agents ---

pettingzoo = pytest.importorskip("pettingzoo")


class Pair(pettingzoo.ParallelEnv):
    """Two agents; the second one leaves early."""

    metadata = {"name": "pair"}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents = ["a", "b"]
        self.agents: list[str] = []
        self.space = gs.Dict(x=gs.Box(0, 10, (1,), np.float32))
        self.moves = gs.Discrete(2)
        self.render_mode = None

    def observation_space(self, agent: str) -> gs.Space:
        return self.space

    def action_space(self, agent: str) -> gs.Space:
        return self.moves

    def reset(self, seed: int | None = None, options: dict | None = None) -> Any:
        self.time, self.agents = 0, ["a", "b"]
        return {agent: self.look(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.time += 1
        ended = {agent: self.time == (4 if agent == "b" else 8) for agent in self.agents}
        result = (
            {agent: self.look(agent) for agent in self.agents},
            dict.fromkeys(self.agents, 1.0),
            ended,
            dict.fromkeys(self.agents, False),
            {agent: {} for agent in self.agents},
        )
        self.agents = [agent for agent in self.agents if not ended[agent]]
        return result

    def look(self, agent: str) -> Any:
        return {"x": np.array([self.time], np.float32)}


def test_a_sound_team_has_no_errors_and_its_agents_are_counted() -> None:
    report = check_env(Pair, steps=60)
    assert [f for f in report.findings if f.severity != "note"] == [], str(report)
    assert report.facts["kind"] == "PettingZoo parallel" and report.facts["num_agents"] == 2
    assert report.facts["mean_episode_length"] == 8


def test_a_defect_of_one_agent_names_that_agent() -> None:
    def look(self: Pair, agent: str) -> Any:
        return {"x": np.array([11 if agent == "b" else 0], np.float32)}

    report = check_env(type("Broken", (Pair,), {"look": look}), steps=60)
    (finding,) = [f for f in report.of("error") if f.where == "obs/x"]
    assert "between 0 and 10" in finding.problem and "agent b" in finding.problem


def test_a_reset_that_leaves_no_agents_is_found_once() -> None:
    def reset(self: Pair, seed: int | None = None, options: dict | None = None) -> Any:
        if not hasattr(self, "time"):
            self.agents = ["a", "b"]
        self.time = 0
        return {agent: self.look(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    report = check_env(type("Forgets", (Pair,), {"reset": reset}), steps=60)
    (finding,) = report.of("error")
    assert (finding.where, finding.problem) == ("reset()", "reset() left no agents")
    assert "self.agents = self.possible_agents[:]" in finding.fix


def test_pettingzoos_own_test_is_run() -> None:
    def observation_space(self: Pair, agent: str) -> gs.Space:
        return gs.Dict(x=gs.Box(0, 10, (1,), np.float32))

    report = check_env(type("Broken", (Pair,), {"observation_space": observation_space}), steps=60)
    assert any("parallel_api_test" in f.where and "lru_cache" in f.problem for f in report.of("error")), str(report)

    def look(self: Pair, agent: str) -> Any:
        return {"x": np.array([11], np.float32)}

    report = check_env(type("Worse", (Pair,), {"observation_space": observation_space, "look": look}), steps=60)
    (note,) = [f for f in report.of("note") if "parallel_api_test" in f.where]
    assert "lru_cache" in note.problem and note.fix.endswith("if not, do what the message asks")
