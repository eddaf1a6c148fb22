"""Columns of rows: one that an environment declares, and one more line in the table, are there from the step to the batch."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from torch import Tensor

import fugu
import fugu.gpu
from fugu.algorithm.a2c import A2C, Settings
from fugu.emulation import columns as table
from fugu.emulation.env import EnvSpec, Rows, spec_of
from fugu.errors import ConfigError, EnvError, SpaceError
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.config import PolicyConfig
from fugu.rollout.acting import Act, Actor, Seen
from fugu.rollout.device import DeviceRollout, Slab
from fugu.rollout.episodes import Episodes, Groups
from fugu.rollout.feed import Feed
from fugu.rollout.onpolicy import OnPolicy
from fugu.vector.buffers import Buffers

HORIZON = 7
DECLARED: dict[str, Any] = {"risk": ((), "float32"), "slip": ((2,), np.int16)}


def risk_of(obs: Any, action: Any) -> Any:
    """What a step from ``obs`` (seed, step) says of its risk: nothing on every third step."""
    key, t = obs[..., 0], obs[..., 1]
    return np.where(t % 3 == 2, 0.0, key + t / 4 + action).astype(np.float32)


def slip_of(obs: Any, action: Any) -> Any:
    return np.stack([-obs[..., 1], 100 * action], -1).astype(np.int16)


class Risky(gymnasium.Env):
    """Episodes of two to five steps, as their seed says. ``reset`` says things too: they belong to no step."""

    observation_space, action_space = gs.Box(0, 100, (2,), np.float32), gs.Discrete(3)
    columns = DECLARED

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = np.array([self.np_random.integers(50), 0], np.float32)
        return self.at.copy(), {"risk": 77.0, "slip": [7, 7]}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        info: dict[str, Any] = {"slip": slip_of(self.at, action)}
        if self.at[1] % 3 != 2:
            info["risk"] = float(risk_of(self.at, action))
        self.at[1] += 1
        over = self.at[1] >= 2 + self.at[0] % 4
        return self.at.copy(), 1.0, bool(over and self.at[0] % 2), bool(over and not self.at[0] % 2), info


class RiskyRows:
    """The same as an ``Env`` that writes its rows itself, three agents at once, each of which ends alone."""

    observation_space, action_space, columns = Risky.observation_space, Risky.action_space, DECLARED
    num_agents = 3

    def reset(self, seed: int | None, out: Rows) -> None:
        self.random = np.random.default_rng(seed)
        self.at = np.stack([self.random.integers(50, size=3), np.zeros(3)], 1).astype(np.float32)
        self.over = np.zeros(3, bool)
        out.start()
        out.obs[...] = self.at

    def step(self, action: np.ndarray, out: Rows) -> None:
        again, before = self.over, self.at.copy()
        self.at[:, 1] += 1
        self.at[again] = np.stack([self.random.integers(50, size=again.sum()), np.zeros(again.sum())], 1)
        self.over = ~again & (self.at[:, 1] >= 2 + self.at[:, 0] % 4)
        out.obs[...], out.reward[...] = self.at, ~again
        out.terminated[...], out.truncated[...] = self.over, False
        out.first[...], out.mask[...] = again, ~self.over
        out["risk"][...] = np.where(again, 0, risk_of(before, action))
        out["slip"][...] = np.where(again[:, None], 0, slip_of(before, action))

    def close(self) -> None: ...


class RiskyPair:
    """A PettingZoo parallel environment of it: b leaves after its first step."""

    possible_agents = ("a", "b")
    columns = DECLARED
    metadata: dict[str, Any] = {}  # noqa: RUF012

    def observation_space(self, agent: str) -> gs.Space:
        return Risky.observation_space

    def action_space(self, agent: str) -> gs.Space:
        return Risky.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.t = list(self.possible_agents), 0
        return self._seen(), {"a": {"risk": 77.0}}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        before = self._seen()
        self.t += 1
        over = {agent: self.t == (3 if agent == "a" else 1) for agent in self.agents}
        said = {agent: {"slip": slip_of(before[agent], actions[agent])} for agent in self.agents}
        for agent, info in said.items():
            if self.t != 3:
                info["risk"] = risk_of(before[agent], actions[agent])
        result = self._seen(), dict.fromkeys(self.agents, 0.0), over, dict.fromkeys(self.agents, False), said
        self.agents = [agent for agent in self.agents if not over[agent]]
        return result

    def _seen(self) -> dict[str, Any]:
        return {agent: np.array([1 if agent == "a" else 4, self.t], np.float32) for agent in self.agents}

    def close(self) -> None: ...


class RiskyWorlds:
    """The same as torch functions over all worlds."""

    observation_space, action_space, columns, name = Risky.observation_space, Risky.action_space, DECLARED, "risky"

    def reset(self, n: int, uniform: Any) -> dict[str, Tensor]:
        return {"key": torch.floor(50 * uniform()), "t": torch.zeros(n, device=uniform.device)}

    def step(self, state: dict[str, Tensor], action: Tensor) -> Any:
        key, t = state["key"], state["t"]
        risk = torch.where(t % 3 == 2, 0.0, key + t / 4 + action)
        slip = torch.stack([-t, 100.0 * action], 1)
        return {"key": key, "t": t + 1}, torch.ones_like(t), t + 1 >= 2 + key % 4, {"risk": risk, "slip": slip}

    def observe(self, state: dict[str, Tensor]) -> Tensor:
        return torch.stack([state["key"], state["t"]], 1)


def act(seen: Seen) -> Act:
    """Act as a function of the observation."""
    action = (seen.obs[:, 0] + 2 * seen.obs[:, 1]).long() % 3
    return Act(action, None, {"action": action[:, None], "value": seen.obs[:, 0]})


def assert_right(batch: Any) -> None:
    """Compare both columns, row by row, with what follows from observations and actions."""
    obs, action = batch["obs"].numpy(), batch["action"].squeeze(-1).numpy()
    acted = batch["mask"].numpy()
    assert batch["risk"].dtype == torch.float32 and batch["slip"].dtype == torch.int16
    np.testing.assert_array_equal(batch["risk"].numpy(), np.where(acted, risk_of(obs, action), 0))
    np.testing.assert_array_equal(batch["slip"].numpy(), np.where(acted[..., None], slip_of(obs, action), 0))
    assert not acted.all() and (batch["risk"][batch["mask"]] == 0).any() and (batch["risk"] != 0).sum() > batch.segments


WAYS = [
    {"backend": "serial"},
    {"backend": "serial", "batch_size": 2},
    {"backend": "process", "num_workers": 1},
    {"backend": "process", "num_workers": 2},
    {"backend": "process", "num_workers": 2, "batch_size": 3, "order": "first_finished"},
    {"backend": "process", "num_workers": 2, "batch_size": 3, "infos": "none"},
]


@pytest.mark.parametrize("env", [Risky, RiskyRows, RiskyPair])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_an_environments_own_columns_are_right_in_every_batch(env: Any, way: dict[str, Any]) -> None:
    way = {name: None if value == "none" else value for name, value in way.items()}
    with fugu.vector.make(env, 6, **way) as vec:
        assert vec.spec.columns == {"risk": ((), "float32"), "slip": ((2,), "int16")}
        source = OnPolicy(vec, HORIZON, passes=2)
        source.restart(seed=3)
        for _ in range(3):
            batch = source.next(Actor(act)).batch
            assert batch["risk"].shape == (2 * vec.num_agents, HORIZON) and batch["slip"].shape[2:] == (2,)
            assert_right(batch)


@pytest.mark.parametrize("way", WAYS[:4], ids=lambda way: "-".join(map(str, way.values())))
def test_an_environments_own_columns_are_right_row_by_row(way: dict[str, Any]) -> None:
    """Against the environments themselves, played beside by hand."""
    own = [Risky() for _ in range(4)]
    with fugu.vector.make(Risky, 4, **way) as vec:
        vec.async_reset(seed=[5, 6, 7, 8])
        state = [env.reset(seed=5 + i)[0] for i, env in enumerate(own)]
        expected, over = np.zeros(4, np.float32), [False] * 4
        for step in range(25):
            actions = np.array([(step + i) % 3 for i in range(4)])
            for _ in vec.groups:
                rows = vec.recv()
                np.testing.assert_array_equal(rows["risk"], expected[rows.agents])
                np.testing.assert_array_equal(rows.obs, np.stack(state)[rows.agents])
                vec.send(actions[rows.agents])
            for i, env in enumerate(own):
                if over[i]:
                    state[i], expected[i], over[i] = env.reset()[0], 0, False
                else:
                    state[i], _, terminated, truncated, info = env.step(actions[i])
                    expected[i], over[i] = info.get("risk", 0), terminated or truncated


def test_columns_of_wrappers_and_of_what_they_wrap_are_there_together() -> None:
    class Twice(gymnasium.Wrapper):
        columns = {"twice": ((), "float64")}  # noqa: RUF012

        def step(self, action: Any) -> Any:
            *result, info = self.env.step(action)
            return *result, {**info, "twice": 2 * info.get("risk", 0)}

    with fugu.vector.make(lambda: Twice(Risky()), 3, backend="serial") as vec:
        vec.reset(0)
        vec.step(np.array([2, 1, 0]))
        assert vec.spec.columns.keys() == {"risk", "slip", "twice"}
        assert vec.rows["risk"].any()
        np.testing.assert_array_equal(vec.rows["twice"], 2 * vec.rows["risk"].astype(float))


@pytest.mark.parametrize("on_device", [False, True])
def test_worlds_in_torch_have_their_own_columns_too_and_go_on_from_a_snapshot(on_device: bool) -> None:
    def source() -> Any:
        if on_device:
            vec = fugu.vector.make(RiskyWorlds, 6, device="cpu")
            return DeviceRollout(vec, HORIZON, {"action": ((1,), torch.int64), "value": ((), torch.float32)})
        return OnPolicy(fugu.vector.make(RiskyWorlds, 6, batch_size=3), HORIZON)

    def copy(batch: Any) -> dict[str, Tensor]:
        return {name: column.clone() for name, column in batch.columns.items()}

    first, second = source(), source()
    first.restart(seed=4)
    assert_right(first.next(Actor(act)).batch)
    saved = {name: torch.as_tensor(value).clone() for name, value in first.snapshot().items()}
    expected = copy(first.next(Actor(act)).batch)
    second.restart(seed=5)
    second.restore(saved)
    batch = second.next(Actor(act)).batch
    assert_right(batch)
    assert expected.keys() == batch.columns.keys()
    for name, column in expected.items():
        assert torch.equal(column, batch[name]), name
    first.vec.close()
    second.vec.close()


@pytest.mark.parametrize("device", ["cpu", "emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_they_cross_to_a_policy_elsewhere(device: str) -> None:
    columns = {"action": ((1,), torch.int64), "value": ((), torch.float32)}
    emulating = fugu.gpu.emulation() if device == "emulated" else contextlib.nullcontext()
    with emulating, fugu.vector.make(Risky, 6, backend="serial", batch_size=2) as vec:
        source = Feed(vec, HORIZON, columns, device=torch.device("cpu" if device == "emulated" else device))
        source.restart(seed=3)
        for _ in range(2):
            assert_right(source.next(Actor(act)).batch.to(torch.device("cpu")))


def test_worlds_in_torch_one_by_one_have_their_own_columns() -> None:
    with fugu.vector.make(RiskyWorlds, 4, backend="serial") as vec:
        source = OnPolicy(vec, 2 * HORIZON)
        source.restart(seed=4)
        assert_right(source.next(Actor(act)).batch)


def test_whole_episodes_have_them_up_to_their_end() -> None:
    with fugu.vector.make(Risky, 6, backend="serial") as vec:
        source = Episodes(vec, HORIZON, Groups(2))
        source.restart(seed=4)
        batch = source.next(Actor(act)).batch
        obs, action = batch["obs"].numpy(), batch["action"].squeeze(-1).numpy()
        np.testing.assert_array_equal(batch["risk"].numpy(), np.where(batch["mask"].numpy(), risk_of(obs, action), 0))
        assert not batch["mask"].all() and batch["risk"].any()


def test_the_loss_of_an_algorithm_reads_them() -> None:
    class Careful(A2C):
        def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
            loss, metrics = super().loss(batch)
            out = self.policy(batch["obs"], None, batch["first"])
            risk = torch.where(batch["mask"], (out.value - batch["risk"]).square(), 0.0).mean()
            return loss + risk, {**metrics, "loss/risk": risk.detach()}

    with fugu.vector.make(Risky, 6, backend="serial") as vec:
        torch.manual_seed(0)
        policy = ActorCritic(vec.observation_space, vec.action_space, PolicyConfig(hidden=(16,)))
        algorithm = Careful(policy, Settings())
        source = OnPolicy(vec, HORIZON)
        source.restart(seed=4)
        batch = algorithm.prepare(source.next(Actor(algorithm.act)).batch, 0.0)
        loss, metrics = algorithm.loss(batch.part(0, 4))
        loss.backward()
        assert metrics["loss/risk"] > 0 and all(p.grad is None or p.grad.isfinite().all() for p in policy.parameters())


# --- what is refused ---


def declaring(**columns: Any) -> Any:
    return type("Declaring", (Risky,), {"columns": columns})


@pytest.mark.parametrize(
    "columns, problem",
    [
        ({"reward": ((), "float32")}, "every row has a column 'reward' already"),
        ({"the risk": ((), "float32")}, "is no name for a column"),
        ({"class": ((), "float32")}, "is no name for a column"),
        ({"risk": ((), "float32"), "other": "float32"}, "must have a shape and a dtype"),
        ({"risk": ((), "no such")}, "must have a shape and a dtype"),
        ({"risk": ((), "complex64")}, "cannot have the shape"),
        ({"risk": ((0,), "float32")}, "cannot have the shape"),
    ],
)
def test_what_cannot_be_a_column_is_refused_with_a_fix(columns: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        fugu.vector.make(declaring(**columns), 1, backend="serial")
    assert caught.value.fix


@pytest.mark.parametrize("name", ["value", "advantage", "state"])
def test_a_name_that_a_batch_has_for_something_else_is_refused(name: str) -> None:
    with fugu.vector.make(declaring(**{name: ((), "float32")}), 1, backend="serial") as vec:
        with pytest.raises(ConfigError, match=f"own_{name}"):
            OnPolicy(vec, 3)


def test_a_name_that_a_policy_keeps_is_refused() -> None:
    with fugu.vector.make(Risky, 1, backend="serial") as vec:
        source = OnPolicy(vec, 3)
        source.restart(seed=0)
        with pytest.raises(ConfigError, match="own_risk"):
            source.next(Actor(lambda seen: Act(act(seen).env_action, None, {"risk": seen.obs[:, 0]})))


def test_an_attribute_that_means_something_else_is_left_alone() -> None:
    for meant in (7, ["close"], {"close": 3}, {}, None):
        kind = type("Board", (Risky,), {"columns": meant})
        with fugu.vector.make(kind, 1, backend="serial") as vec:
            vec.reset(0)
            assert vec.spec.columns == {} and "risk" not in vec.rows.columns


@pytest.mark.parametrize("said", ["much", None, [1.0, 2.0], float("nan"), 1e39, {}])
def test_a_value_that_does_not_fit_is_named(said: Any) -> None:
    class Saying(Risky):
        def step(self, action: Any) -> Any:
            return (*super().step(action)[:4], {"risk": said})

    with fugu.vector.make(Saying, 1, backend="serial") as vec:
        vec.reset(0)
        with pytest.raises(EnvError, match="risk"):
            vec.step(np.zeros(1, np.int64))


def test_integers_that_do_not_fit_are_not_cut_off() -> None:
    class Slipping(Risky):
        def step(self, action: Any) -> Any:
            return (*super().step(action)[:4], {"slip": [1, 2**15]})

    with fugu.vector.make(Slipping, 1, backend="serial") as vec:
        vec.reset(0)
        with pytest.raises(EnvError, match="int16"):
            vec.step(np.zeros(1, np.int64))


def test_environments_with_different_columns_do_not_share_a_batch() -> None:
    with pytest.raises(ConfigError, match="another columns"):
        fugu.vector.make([Risky, declaring(risk=((), "float32"))], 2, backend="serial")


def test_columns_of_a_gymnasium_vector_env_are_refused() -> None:
    class Many(gymnasium.vector.SyncVectorEnv):
        columns = DECLARED

    with pytest.raises(ConfigError, match="give the single environment"):
        fugu.vector.make(lambda: Many([Risky] * 2), 1, backend="serial")


def test_a_torch_environment_that_forgets_its_columns_is_told() -> None:
    class Forgetful(RiskyWorlds):
        def step(self, state: dict[str, Tensor], action: Tensor) -> Any:
            return super().step(state, action)[:3]

    with fugu.vector.make(Forgetful, 2) as vec:
        vec.reset(0)
        with pytest.raises(SpaceError, match="risk"):
            vec.step(np.zeros(2, np.int64))


def test_the_checker_knows_them() -> None:
    class Forgetful(RiskyRows):
        def step(self, action: np.ndarray, out: Rows) -> None:
            kept = out["risk"].copy()
            super().step(action, out)
            out["risk"][...] = kept

    for env in (Risky, RiskyRows):
        assert not [finding for finding in fugu.check_env(env).findings if finding.severity == "error"], env
    assert any(finding.where == "risk" for finding in fugu.check_env(Forgetful).findings)


def test_a_worker_that_died_leaves_rows_that_say_nothing() -> None:
    class Dying(Risky):
        def step(self, action: Any) -> Any:
            if self.at[1] == 1 and action == 2:
                raise RuntimeError("dead")
            return super().step(action)

    with fugu.vector.make(Dying, 2, backend="serial", on_error="restart") as vec:
        vec.reset(0)
        vec.step(np.array([1, 1]))
        assert vec.rows["risk"].all()
        vec.step(np.array([2, 1]))
        assert vec.rows["risk"][0] == 0 and vec.rows["risk"][1] > 0 and vec.rows.truncated[0]


# --- one more line in the table ---

MARK = table.RowColumn("mark", "outcome", "int32", lambda spec: (2, spec.num_agents), lambda spec: "marks" in spec.metadata)
MOOD = table.RowColumn("mood", "next", "uint8", there=lambda spec: "marks" in spec.metadata)


class Marking:
    """Writes both columns; nothing but the lines above knows of them."""

    observation_space, action_space = gs.Box(0, 100, (1,), np.float32), gs.Discrete(2)
    num_agents = 2
    metadata = {"marks": True}  # noqa: RUF012

    def reset(self, seed: int | None, out: Rows) -> None:
        self.t = 0
        out.start()
        assert not out["mark"].any()
        out.obs[...], out["mood"][...] = 0, 9

    def step(self, action: np.ndarray, out: Rows) -> None:
        self.t += 1
        out.obs[...] = out.reward[...] = self.t
        out.terminated[...] = out.truncated[...] = out.first[...] = False
        out.mask[...] = True
        out["mark"][...], out["mood"][...] = self.t + np.arange(2)[:, None, None], 9 + self.t

    def close(self) -> None: ...


def marking() -> Marking:
    """Make one, also in a worker, whose table has not been extended yet."""
    if MARK.name not in {column.name for column in table.TABLE}:
        table.TABLE = (*table.TABLE, MARK, MOOD)
    return Marking()


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> Iterator[EnvSpec]:
    monkeypatch.setattr(table, "TABLE", (*table.TABLE, MARK, MOOD))
    yield spec_of(Marking())


def test_a_line_in_the_table_is_in_rows_and_in_shared_memory(longer: EnvSpec) -> None:
    rows = Rows.zeros(longer)
    assert rows["mark"].shape == (2, 2, 2) and rows["mark"].dtype == np.int32 and rows[1:2]["mood"].shape == (1,)
    assert rows["mark"] is not rows.reward and any(column is rows["mark"] for column in rows.outcome())
    assert not any(column is rows["mood"] for column in rows.outcome())
    buffers = Buffers(longer, 4, 8, groups=[slice(0, 4), slice(4, 8)])
    low = buffers.block.ctypes.data
    for rows in itertools.chain(*buffers.rows):
        for name in ("mark", "mood"):
            assert low <= rows[name].ctypes.data < low + buffers.nbytes
        rows["mark"][...] = np.arange(rows.agents.start, rows.agents.stop)[:, None, None]
    assert buffers.part(1, slice(5, 7))["mark"][:, 0, 0].tolist() == [5, 6]
    saved = buffers.save([0, 1])
    for rows in itertools.chain(*buffers.rows):
        rows["mark"][...] = -1
    buffers.load(buffers.checked(saved, "two batches"), [0, 1])
    assert buffers.rows[1][1]["mark"][:, 1, 1].tolist() == [4, 5, 6, 7] and (buffers.rows[1][0]["mark"] == -1).all()
    del saved["mark"]
    buffers.load(buffers.checked(saved, "two batches"), [0, 1])
    assert not buffers.rows[0][0]["mark"].any()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_a_line_in_the_table_is_in_every_batch(longer: EnvSpec, way: dict[str, Any]) -> None:
    way = {name: None if value == "none" else value for name, value in way.items()}
    with fugu.vector.make(functools.partial(marking), 6, **way) as vec:
        source = OnPolicy(vec, HORIZON)
        source.restart(seed=0)
        for number in range(2):
            batch = source.next(Actor(lambda seen: Act(torch.zeros(len(seen.obs), dtype=torch.int64), None, {}))).batch
            assert batch["mark"].shape == (12, HORIZON, 2, 2)
            time = number * HORIZON + torch.arange(HORIZON)
            assert torch.equal(batch["mood"], (9 + time).expand(12, -1).to(torch.uint8))
            agents = torch.arange(12)[:, None] % 2
            assert torch.equal(batch["mark"][..., 0, 0], (1 + time + agents).int())


def test_a_line_in_the_table_is_in_the_rows_on_a_device(longer: EnvSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    always = table.RowColumn("depth", "outcome", "float64")
    monkeypatch.setattr(table, "TABLE", (*table.TABLE, always))
    with fugu.vector.make("cartpole", 3, device="cpu") as vec:
        rows = vec.rows()
        assert rows["depth"].shape == (3,) and rows["depth"].dtype == torch.float64 and "mark" not in rows.columns
        vec.reset(0, rows)
        slab = Slab(vec, HORIZON, vec.device, {})
        assert slab.rows(2)["depth"].data_ptr() == slab["depth"][2].data_ptr()
        vec.step(torch.zeros(3, dtype=torch.int64), slab.rows(0))
