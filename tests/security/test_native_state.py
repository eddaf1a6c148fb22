"""Saved states of native worlds that somebody has tampered with: each is refused with one error, or the worlds behave.

Under the sanitizers (``make sanitize``) "behave" includes that nothing is read or written outside of what it belongs to.
"""

import numpy as np
import pytest

import fugu
from fugu.emulation.native import names
from fugu.errors import ConfigError
from fugu.native import native
from tests.envs.native_state import BLOCK, LANES, misfit, play, random_settings, spoilt, worlds

IN_PLACE = ("snake",)
"""states of more than 256 bytes, which lie world after world on a GPU; of others, [word][world]"""


def tampered_with(name: str, attempts: int, steps: int, seed: int, settings: dict | None = None) -> int:
    """Restore spoilt states, and play on where that is allowed; how many that was."""
    random = np.random.default_rng(seed)
    count = BLOCK if name in LANES else 1
    with worlds(name, count, seed, settings) as vec:
        good = [vec.snapshot(), *(vec.snapshot() for _ in play(vec, 120, seed) if random.random() < 0.1)]
        allowed = 0
        for attempt in range(attempts):
            saved, other = (dict(good[i]) for i in random.integers(0, len(good), 2))
            saved["state"] = spoilt(saved["state"], other["state"], random)
            try:
                vec.restore(saved)
            except ConfigError as error:
                assert f"none that {name} can be in" in str(error)
                continue
            allowed += 1
            for rows in play(vec, steps, attempt):
                if not settings:  # otherwise observations may be outside of their space without anybody's doing
                    assert not (found := misfit(name, rows.obs)), f"attempt {attempt}: {found}"
                assert np.isfinite(rows.reward).all() or settings, f"attempt {attempt}"
            vec.render([0])
    return allowed


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", names())
def test_worlds_in_a_spoilt_state_refuse_it_or_behave(name):
    allowed = tampered_with(name, 40, 12, 0)
    assert 0 < allowed < 40


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names())
def test_worlds_in_many_spoilt_states_refuse_them_or_behave(name):
    random = np.random.default_rng(1)
    tampered_with(name, 150, 100, 1)
    for seed in range(2, 6):
        tampered_with(name, 25, 40, seed, random_settings(name, random))


FIELDS = [
    ("bandit", "<i4", 0, 4),
    ("bandit", "<f4", 4, np.nan),
    ("breakout", "<f4", 4, 1000.0),  # x, from which the column of a brick follows
    ("breakout", "<f4", 20, 0.0),  # speed, which is divided by
    ("breakout", "<i4", 24, 0),
    ("breakout", "<u4", 32, 2**18),
    ("connect4", "<u8", 8, 2**6),  # above the highest row
    ("connect4", "<u1", 8 + 16 + 42, 7),  # height of a column
    ("connect4", "<u1", 8 + 16 + 49 + 1, 2),  # whose turn
    ("foraging", "<i1", 16, 100),  # a player's row
    ("foraging", "<i4", 16 + 32, 0),  # the levels of all food, which is divided by
    ("hidden_bonus", "<u1", 1, 4),
    ("knapsack_cmdp", "<i4", 8 + 16, 64),  # how far a bit is shifted
    ("maze", "<u4", 12, 0),  # the wall above
    ("maze", "<i1", 108, 20),
    ("memory", "<i4", 4, 40),
    ("multiagent", "<i1", 0, 2),
    ("password", "<i4", 4, -1),
    ("pong", "<f4", 0, np.inf),
    ("reverse", "<i1", 7, 100),
    ("safe_point", "<f4", 8, 2.0),
    ("snake", "<u2", 0, 2515),  # a head where one cannot see as far as that
    ("snake", "<u2", 16, 0),
    ("snake", "<u2", 32, 2),  # a length that its body does not have
    ("snake", "<u2", 48, 200),
    ("snake", "<u1", 80, 4),
    ("snake", "<u1", 92 + 50 * 4 + 20, 0),  # a hole in the wall
    ("snake", "<u1", 92 + 2515, 200),
    ("spaces", "<i1", 0, 2),
    ("squared", "<i1", 0, 11),
    ("stochastic", "<i4", 4, 33),
    ("tetris", "<u2", 2, 0),  # no wall
    ("tetris", "<u2", 48, 0xE007),  # no floor
    ("tetris", "<i1", 50, 120),
    ("tetris", "<i1", 51, -2),
    ("tetris", "<u1", 52, 7),
    ("tetris", "<u1", 54, 4),
    ("tetris", "<i4", 56, 2**31 - 1),
]
"""environments, with the type and place of a field of their state, and what must not be in it"""


@pytest.mark.parametrize(("name", "dtype", "at", "value"), FIELDS)
def test_a_field_that_something_relies_on_is_refused_where_it_cannot_be(name, dtype, at, value):
    with worlds(name, 1, 0) as vec:
        saved = vec.snapshot()
        vec.restore(saved)
        bad = np.frombuffer(np.array(value).astype(dtype).tobytes(), np.uint8)
        saved["state"][at : at + len(bad)] = bad
        with pytest.raises(ConfigError, match=f"world 0 is none that {name} can be in"):
            vec.restore(saved)


def test_a_board_without_an_empty_cell_is_refused():
    """The next piece of food would be looked for without end."""
    with worlds("snake", 1, 0) as vec:
        saved = vec.snapshot()
        board = saved["state"][92 : 92 + 2500]
        board[board == 0] = 1
        with pytest.raises(ConfigError, match="can be in"):
            vec.restore(saved)


def test_a_body_that_bites_its_own_tail_is_refused():
    """Taking it off the board would go on where there is none, through the walls."""
    with worlds("snake", 1, 0, {"food": 0}) as vec:
        saved = vec.snapshot()
        state, board = saved["state"], saved["state"][92:]
        cells = np.frombuffer(state, np.uint16)
        free = next(at for at in range(5 * 50 + 5, 2000) if not board[[at, at + 1, at + 50]].any() and at % 50 < 43)
        board[cells[0]] = 0
        board[[free, free + 1, free + 50]] = (
            128 + 1,
            128 + 3,
            128,
        )  # to the right and back; one more, so that the length is right
        cells[[0, 8, 16, 24]] = free, free, 3, 0
        with pytest.raises(ConfigError, match="can be in"):
            vec.restore(saved)
        board[[free + 1, free + 50]] = 128 + 2, 0
        board[free + 51] = 128  # a line of three is one
        cells[0] = free + 51
        vec.restore(saved)


@pytest.mark.parametrize(
    ("name", "from_end", "dtype", "value"),
    [
        ("tetris", 4, "<u1", 7),  # ended: a bool that is none
        ("tetris", 8, "<i4", -1),  # length
        ("tetris", 8, "<i4", 10_000),  # the time limit, and the episode goes on
        ("tetris", 16, "<f8", np.nan),  # return
    ],
)
def test_what_the_engine_keeps_of_a_world_is_checked_too(name, from_end, dtype, value):
    with worlds(name, 1, 0) as vec:
        saved = vec.snapshot()
        at, bad = len(saved["state"]) - from_end, np.array(value).astype(dtype).tobytes()
        saved["state"][at : at + len(bad)] = np.frombuffer(bad, np.uint8)
        with pytest.raises(ConfigError, match="can be in"):
            vec.restore(saved)


def test_turns_and_costs_of_running_episodes_are_checked():
    for name, dtype, value in (("connect4", "<i4", 5), ("safe_point", "<f8", np.inf)):
        with worlds(name, 1, 0) as vec:
            saved = vec.snapshot()
            saved["state"][: np.dtype(dtype).itemsize] = np.frombuffer(np.array(value).astype(dtype).tobytes(), np.uint8)
            with pytest.raises(ConfigError, match="can be in"):
                vec.restore(saved)


def test_one_bad_world_among_many_is_named_and_none_is_changed():
    for name, wide, at in (("password", 4, 4), ("mountain_car", 4, 0)):
        with worlds(name, 150, 0) as vec:
            list(play(vec, 3, 0))
            before = vec.snapshot()
            saved = {part: column.copy() for part, column in before.items()}
            size = len(saved["state"]) // (150 if name == "password" else 3)
            start = 140 * size + at if name == "password" else 2 * size + 12 * 8  # 140 = 2 * 64 + 12
            saved["state"][start : start + wide] = 0xFF
            with pytest.raises(ConfigError, match="of world 140 is none"):
                vec.restore(saved)
            assert all(column.tobytes() == before[part].tobytes() for part, column in vec.snapshot().items())


def spoilt_rows(part: str, value: np.ndarray) -> dict[str, np.ndarray]:
    with worlds("reverse", 4, 0) as vec:
        saved = vec.snapshot()
    return {**saved, part: value}


@pytest.mark.parametrize(
    ("part", "value", "why"),
    [
        ("state", np.zeros(7, np.uint8), "7 bytes"),
        ("state", np.zeros(96, np.float32), "float32"),
        ("obs", np.zeros(5, np.uint8), "5 bytes instead of 192"),
        ("obs", np.full(192, 255, np.uint8), "outside MultiDiscrete"),
        ("mask", np.full(4, 7, np.uint8), "neither true nor false"),
        ("terminated", np.full(4, 2, np.uint8), "neither true nor false"),
        ("reward", np.full(16, 255, np.uint8), "NaN"),
        ("reward", np.zeros((4, 4), np.float32), "float32 instead of bytes"),
    ],
)
def test_rows_of_a_snapshot_are_checked(part, value, why):
    with worlds("reverse", 4, 1) as vec:
        before = vec.snapshot()
        with pytest.raises(ConfigError, match=why):
            vec.restore(spoilt_rows(part, value))
        assert all(column.tobytes() == before[name].tobytes() for name, column in vec.snapshot().items())


@pytest.mark.parametrize("part", ["state", "obs", "mask"])
def test_a_snapshot_without_one_of_its_parts_is_refused(part):
    with worlds("reverse", 4, 1) as vec:
        saved = vec.snapshot()
        del saved[part]
        with pytest.raises(ConfigError, match=f"'{part}' of the saved state is missing"):
            vec.restore(saved)


def test_running_sums_of_a_snapshot_are_checked():
    with fugu.vector.make("cartpole", 3, infos="all", num_workers=1) as vec:
        vec.async_reset(seed=0)
        vec.recv()
        vec.park()
        saved = vec.snapshot()
        for name, bad in (
            ("returns", np.zeros(1)),
            ("returns", np.full(3, np.nan)),
            ("lengths", np.zeros(3)),
            ("lengths", np.full(3, -1)),
        ):
            with pytest.raises(ConfigError, match=f"running {name}"):
                vec.restore({**saved, f"running {name}": bad})


def words_of(name: str, state: np.ndarray, count: int) -> np.ndarray:
    """Return the state of worlds that lie one after the other as it lies on a GPU."""
    words = state.view(np.int32).reshape(count, -1)
    return words if name in IN_PLACE else np.ascontiguousarray(words.T)


@pytest.mark.parametrize("name", [name for name in names() if name not in LANES])
def test_the_same_is_asked_of_worlds_that_go_to_a_gpu(name):
    random = np.random.default_rng(0)
    with worlds(name, 5, 0) as vec:
        for _ in play(vec, 40, 0):
            pass
        state = np.frombuffer(vec._runner.state, np.uint8).copy()
        assert native.first_unsound(name, {}, words_of(name, state, 5)) == -1
        found = []
        for _ in range(30):
            bad = state.copy()
            one = bad.reshape(5, -1)[3]
            one[...] = spoilt(one, one[::-1].copy(), random)
            found.append(vec._runner._worlds.restore(bad.tobytes()))
            assert native.first_unsound(name, {}, words_of(name, bad, 5)) == found[-1]
        assert 3 in found
