"""Environments that compute their steps elsewhere: many are under way at once, in one process, and fail as others do."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs

import fugu
from fugu.emulation.env import Rows
from fugu.errors import CallOrderError, EnvError, EnvTimeout
from fugu.vector import serial
from fugu.vector.serial import Serial
from tests.timing import in_time

pytestmark = pytest.mark.usefixtures("no_leaks")


class Clock:
    """Waits for the next of the steps that are due; the same for all envs of the process."""

    def __init__(self) -> None:
        self.due: dict[int, float] = {}
        self.most = 0

    def begin(self, env: int, seconds: float) -> None:
        self.due[env] = time.monotonic() + seconds
        self.most = max(self.most, len(self.due))

    def wait(self, timeout: float) -> None:
        time.sleep(max(0.0, min([timeout, *(due - time.monotonic() for due in self.due.values())])))


CLOCK = Clock()

SLOW, BROKEN, NEVER, ASKING, WRONG_END = 90, 91, 92, 93, 94
"""actions with a meaning; any other is how many milliseconds its step takes"""


class Timed:
    """A step takes as many milliseconds as its action says. Counts its steps, and ends after ``length`` of them."""

    observation_space = gs.Box(0, 1e6, (2,), np.float32)
    action_space = gs.Discrete(100)
    num_agents = 1
    waiter = CLOCK

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.action: int | None = None

    def reset(self, seed: int | None, out: Rows) -> None:
        CLOCK.due.pop(id(self), None)
        self.seed, self.steps, self.ended, self.action = seed or 0, 0, False, None
        out.start()
        out.obs[0] = self.seed % 1000, 0

    def begin(self, action: np.ndarray, out: Rows) -> None:
        assert self.action is None, "begun twice"
        self.action = int(action[0])
        if self.action == BROKEN:
            raise RuntimeError("broken on purpose")
        seconds = {NEVER: 1e6, SLOW: 0.3}.get(self.action, self.action / 1000)
        CLOCK.begin(id(self), seconds)

    def ready(self) -> bool:
        if self.action == ASKING:
            raise RuntimeError("broken when asked")
        return time.monotonic() >= CLOCK.due[id(self)]

    def finish(self, out: Rows) -> dict[int, Any] | None:
        assert self.ready()
        del CLOCK.due[id(self)]
        action, self.action = self.action, None
        if action == WRONG_END:
            raise RuntimeError("broken at the end")
        if self.ended:
            return self.reset(self.seed + 1, out)
        self.steps += 1
        self.ended = self.steps == self.length
        out.obs[0] = self.seed % 1000, self.steps
        out.reward[0], out.terminated[0], out.truncated[0] = action, self.ended, False
        out.first[0], out.mask[0] = False, not self.ended
        return {0: {"steps": self.steps, "episode_log": {"last": float(action)}}} if self.ended else None

    def step(self, action: np.ndarray, out: Rows) -> dict[int, Any] | None:
        self.begin(action, out)
        while not self.ready():
            CLOCK.wait(0.1)
        return self.finish(out)

    def close(self) -> None:
        CLOCK.due.pop(id(self), None)


class Plain(Timed):
    """The same for whoever knows nothing of it."""

    waiter = property()  # type: ignore[assignment]


def one_by_one(rows: Rows) -> tuple[Any, ...]:
    columns = (rows.obs, rows.reward, rows.terminated, rows.truncated, rows.first, rows.mask)
    return (rows.agents.start, *(column.tobytes() for column in columns), {a: i.get("steps") for a, i in rows.infos.items()})


def played(env: Any, turns: int = 24, **settings: Any) -> list[Any]:
    with fugu.vector.make(env, 8, seed=5, **settings) as vec:
        rng = np.random.default_rng(1)
        vec.async_reset()
        seen = []
        for _ in range(turns):
            rows = vec.recv()
            seen.append(one_by_one(rows))
            vec.send(rng.integers(0, 4, rows.agents.stop - rows.agents.start))
        return seen


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"batch_size": 2}], ids=["at once", "in batches"])
def test_steps_computed_elsewhere_give_the_rows_of_plain_steps_in_the_same_order(settings):
    plain = played(Plain, backend="serial", **settings)
    assert played(Timed, backend="serial", **settings) == plain
    assert played(Timed, backend="process", num_workers=4, **settings) == plain


def test_steps_of_all_environments_are_under_way_together():
    CLOCK.most = 0
    with fugu.vector.make(Timed, 20, backend="serial") as vec:
        vec.reset(0)
        start = time.monotonic()
        vec.step(np.full(20, 50))
        took = time.monotonic() - start
        assert CLOCK.most == 20
        in_time(took, 0.5)


def test_a_worker_sets_all_of_its_environments_going_before_it_waits():
    with fugu.vector.make(Timed, 20, backend="process", num_workers=2) as vec:
        vec.reset(0)
        start = time.monotonic()
        vec.step(np.full(20, 50))
        in_time(time.monotonic() - start, 0.4)  # ten one after the other would take half a second


def test_the_batch_that_is_complete_first_comes_first():
    with fugu.vector.make(Timed, 6, batch_size=2, order="first_finished") as vec:
        vec.async_reset(0)
        for delays in ([70, 5], [20, 35], [1, 1]):
            vec.recv()
            vec.send(np.array(delays))
        order = []
        for _ in range(3):
            order.append(vec.recv().agents.start // 2)
            vec.park()
        assert order == [2, 1, 0]


def test_a_slow_batch_is_overtaken_again_and_again_but_not_left_behind():
    with fugu.vector.make(Timed, 2, batch_size=1, order="first_finished", max_lag=5) as vec:
        vec.async_reset(0)
        order = []
        for _ in range(10):
            agent = vec.recv().agents.start
            order.append(agent)
            vec.send(np.array([SLOW if agent == 0 else 1]))
        assert order[:2] == [0, 1] and order[2:6] == [1] * 4 and 0 in order[6:8]


def test_no_processes_are_started_for_them_unless_asked_for():
    with fugu.vector.make(Timed, 4) as vec:
        assert isinstance(vec._runner, Serial)
    with fugu.vector.make(Timed, 4, num_workers=2) as vec:
        assert not isinstance(vec._runner, Serial)


def test_what_they_log_of_episodes_is_averaged_even_where_infos_are_dropped():
    for backend in ("serial", "process"):
        with fugu.vector.make(Timed, 4, backend=backend, infos="none", env_kwargs={"length": 1}) as vec:
            vec.reset(0)
            *_, infos = vec.step(np.array([1, 2, 3, 6]))
            assert "steps" not in infos[0]
            assert vec.drain_log().mean_values == {"last": 3.0}
            assert vec.drain_log().mean_values == {}


@pytest.mark.parametrize("action", [BROKEN, ASKING, WRONG_END])
def test_an_error_is_raised_by_recv_and_names_the_environment(action):
    with fugu.vector.make(Timed, 4, batch_size=2) as vec:
        vec.async_reset(3)
        vec.recv()
        vec.send(np.array([0, action]))
        vec.recv()
        vec.send(np.array([0, 0]))
        with pytest.raises(EnvError, match="broken") as caught:
            vec.recv()
        assert caught.value.envs == (1,) and caught.value.phase == "step"
        with pytest.raises(CallOrderError):
            vec.recv()
        vec.async_reset(4)  # drops what is under way
        assert vec.recv().first.all()
        vec.send(np.array([1, 2]))
        vec.recv()
        vec.send(np.array([1, 2]))
        assert vec.recv().reward.tolist() == [1, 2]


@pytest.mark.parametrize("action", [BROKEN, ASKING, WRONG_END])
def test_one_that_fails_is_replaced_and_the_others_are_not_disturbed(action):
    with fugu.vector.make(Timed, 3, backend="serial", on_error="restart") as vec:
        vec.reset(3)
        _, reward, _, truncated, infos = vec.step(np.array([2, action, 3]))
        assert truncated.tolist() == [False, True, False] and reward.tolist() == [2, 0, 3]
        assert infos[1]["restarted"] == "env" and vec.restarts == 1
        vec.step(np.array([1, 1, 1]))
        assert vec.rows.first.tolist() == [False, True, False]
        _, reward, *_ = vec.step(np.array([1, 2, 3]))
        assert reward.tolist() == [1, 2, 3]


class Scored(Timed):
    """Rewards may be NaN: nothing is to be learned from such an episode. Takes its whole process along when it breaks in a worker."""

    metadata = {"unscored_rewards": True}  # noqa: RUF012 - as in Gymnasium

    def begin(self, action: np.ndarray, out: Rows) -> None:
        if action[0] == BROKEN and multiprocessing.parent_process() is not None:
            os._exit(3)
        super().begin(action, out)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_episode_that_was_lost_is_not_one_that_scored_nothing(backend):
    with fugu.vector.make(Scored, 2, backend=backend, on_error="restart") as vec:
        vec.reset(3)
        _, reward, _, truncated, infos = vec.step(np.array([BROKEN, BROKEN]))
        assert truncated.all() and np.isnan(reward).all() and "restarted" in infos[0]


def test_a_failure_of_what_is_waited_with_is_one_of_the_step(monkeypatch):
    def broken(clock, timeout):
        raise ConnectionError("the service is gone")

    for on_error in ("raise", "restart"):
        with fugu.vector.make(Timed, 2, backend="serial", on_error=on_error) as vec:
            vec.reset(0)
            with monkeypatch.context() as patch:
                patch.setattr(Clock, "wait", broken)
                if on_error == "raise":
                    with pytest.raises(EnvError, match="ConnectionError: the service is gone"):
                        vec.step(np.array([80, 80]))
                else:
                    *_, truncated, _ = vec.step(np.array([80, 80]))
                    assert truncated.all() and vec.restarts == 2


def test_one_that_is_never_done_is_late_and_named():
    with fugu.vector.make(Timed, 3, backend="serial", step_timeout=0.15) as vec:
        vec.reset(0)
        start = time.monotonic()
        with pytest.raises(EnvTimeout, match="step_timeout") as caught:
            vec.step(np.array([1, NEVER, 1]))
        took = time.monotonic() - start
        assert caught.value.envs == (1,)
        in_time(took, 1)


def test_as_long_as_one_after_the_other_is_done_nobody_is_late(monkeypatch):
    begin = Clock.begin
    monkeypatch.setattr(Clock, "begin", lambda clock, env, seconds: begin(clock, env, 10 * seconds))
    with fugu.vector.make(Timed, 6, backend="serial", step_timeout=0.5) as vec:
        vec.reset(0)
        action = np.array([20, 40, 60, 80, 5, 5])  # the last after 0.8 seconds
        _, reward, *_ = vec.step(action)
        assert reward.tolist() == action.tolist()


def test_one_that_is_never_done_is_replaced_where_restarts_are_asked_for():
    with fugu.vector.make(Timed, 3, backend="serial", step_timeout=0.15, on_error="restart") as vec:
        vec.reset(0)
        *_, truncated, infos = vec.step(np.array([1, NEVER, 1]))
        assert truncated.tolist() == [False, True, False] and "step_timeout" in infos[1]["error"]


def test_a_caller_that_takes_its_time_makes_nobody_late():
    with fugu.vector.make(Timed, 2, batch_size=1, step_timeout=0.2) as vec:
        vec.async_reset(0)
        for _ in range(2):
            vec.recv()
            vec.send(np.array([SLOW + 9]))
        time.sleep(0.4)
        assert vec.recv().reward[0] == SLOW + 9


def test_time_in_which_all_was_stopped_makes_nobody_late(monkeypatch):
    monkeypatch.setattr(serial, "MOST_S", 0.02)
    wait = Clock.wait
    stops = iter([0.4])
    monkeypatch.setattr(Clock, "wait", lambda clock, timeout: (time.sleep(next(stops, 0)), wait(clock, timeout)))
    begin = Clock.begin
    monkeypatch.setattr(Clock, "begin", lambda clock, env, seconds: begin(clock, env, seconds + 0.4))
    with fugu.vector.make(Timed, 1, backend="serial", step_timeout=0.2) as vec:
        vec.reset(0)
        assert vec.step(np.array([50]))[1] == 50


def test_reset_and_close_in_the_middle_drop_what_is_under_way():
    with fugu.vector.make(Timed, 4, batch_size=2) as vec:
        vec.async_reset(0)
        vec.recv()
        vec.send(np.array([NEVER, NEVER]))
        assert len(CLOCK.due) == 2
        vec.async_reset(1)
        vec.recv()
        assert len(CLOCK.due) == 0
        vec.send(np.array([NEVER, NEVER]))
    assert len(CLOCK.due) == 0
