"""Values into rows and back: exact round trips, and the native packer against its reference on values good and bad."""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fugu.errors import SpaceError
from fugu.native import native
from fugu.spaces import Layout, Packer, bound
from tests.spaces.strategies import generators, same, spaces, spoiled, value_of

drawn = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
needs_native = pytest.mark.skipif(native is None, reason="the native core is not built")


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    """An overflow or a deprecated conversion inside packing is a mistake even where the result happens to be right."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def filled_row(layout: Layout) -> np.ndarray:
    """A row that held something else before."""
    row = layout.zeros()
    row.reshape(-1).view(np.uint8)[...] = 1
    return row


def packed(packer: Packer, value: Any) -> np.ndarray:
    row = filled_row(packer.layout)
    packer.pack(value, row)
    return row


def round_trip(space: gs.Space, value: Any, **options: Any) -> Any:
    packer = Packer(Layout(space), **options)
    return packer.unpack(packed(packer, value))


def refusal(space: gs.Space, value: Any, **options: Any) -> str:
    """What a value that does not fit is told."""
    with pytest.raises(SpaceError) as caught:
        round_trip(space, value, **options)
    return str(caught.value)


def attempt(packer: Packer, value: Any, row: np.ndarray) -> bool:
    """Whether the reference accepts; anything it raises but SpaceError fails the test."""
    try:
        packer.pack_reference(value, row)
    except SpaceError:
        return False
    return True


# --- what fits comes back ---


@drawn
@given(spaces(), generators, st.booleans())
def test_round_trip_is_exact_to_the_bit(space: gs.Space, rng: np.random.Generator, finite: bool) -> None:
    packer = Packer(Layout(space), finite=finite)
    for _ in range(3):
        value = value_of(space, rng, finite=finite)
        assert same(packer.unpack(packed(packer, value)), value)


@drawn
@given(spaces(), generators)
def test_equal_values_make_equal_rows_whatever_was_there_before(space: gs.Space, rng: np.random.Generator) -> None:
    layout = Layout(space)
    packer = Packer(layout)
    dirty, clean = filled_row(layout), layout.zeros()
    value = value_of(space, rng)
    packer.pack(value_of(space, rng), dirty)
    packer.pack(value, dirty)
    packer.pack(value, clean)
    assert all(same(a, b) for a, b in zip(layout.leaf_views(dirty), layout.leaf_views(clean), strict=True))


@drawn
@given(spaces(), generators)
def test_batches_unpack_row_by_row(space: gs.Space, rng: np.random.Generator) -> None:
    packer = Packer(Layout(space))
    rows = packer.layout.zeros(3)
    values = tuple(value_of(space, rng) for _ in range(3))
    for i, value in enumerate(values):
        packer.pack(value, rows[i, ...])
    assert same(packer.unpack_batch(rows), values)


def test_every_gymnasium_sample_comes_back() -> None:
    """The library's own samplers as a second opinion on what a value looks like."""
    space = gs.Dict(
        box=gs.Box(-1, 1, (2, 3)),
        pixels=gs.Box(0, 255, (3, 3), np.uint8),
        pick=gs.Discrete(4, start=-2),
        picks=gs.MultiDiscrete([[2, 3], [4, 5]], start=[[0, -1], [5, 0]]),
        bits=gs.MultiBinary([2, 2]),
        text=gs.Text(6, charset="abcλ"),
        either=gs.OneOf([gs.Discrete(3), gs.Tuple([gs.Box(-1, 1), gs.Text(3)])]),
        loose=bound(gs.Sequence(gs.Dict(a=gs.Discrete(2), b=gs.Box(0, 1, (2,))), stack=False), 40),
        stacked=bound(gs.Sequence(gs.Dict(a=gs.Discrete(2), b=gs.Text(3), c=gs.OneOf([gs.Discrete(2)])), stack=True), 40),
    )
    space.seed(0)
    packer = Packer(Layout(space))
    for _ in range(50):
        sample = space.sample()
        found = packer.unpack(packed(packer, sample))
        assert same(found, sample)
        assert space.contains(found)


def test_unpacked_arrays_are_copies() -> None:
    packer = Packer(Layout(gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.Discrete(2))))
    row = packed(packer, {"a": np.ones(2, np.float32), "b": 1})
    found = packer.unpack(row)
    row[...] = 0
    assert (found["a"] == 1).all() and found["b"] == 1


def test_stacked_sequences_of_nothing_keep_their_structure() -> None:
    feature = gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.Tuple([gs.Discrete(2), gs.Text(2)]))
    space = bound(gs.Sequence(feature, stack=True), 2)
    empty = {"a": np.zeros((0, 2), np.float32), "b": (np.zeros(0, np.int64), ())}
    assert same(round_trip(space, empty), empty)


# --- the native packer and its reference ---


@needs_native
@drawn
@given(spaces(plain=True), generators, st.booleans())
def test_native_packs_every_proper_value_as_the_reference_does(space: gs.Space, rng: np.random.Generator, finite: bool) -> None:
    packer = Packer(Layout(space), finite=finite)
    fast, slow = filled_row(packer.layout), filled_row(packer.layout)
    value = value_of(space, rng, finite=finite)
    assert packer.fast.pack(value, fast)
    packer.pack_reference(value, slow)
    assert fast.tobytes() == slow.tobytes()


@needs_native
@settings(drawn, max_examples=400)
@given(spaces(depth=2, plain=True), generators, st.booleans(), st.booleans())
@example(gs.MultiDiscrete(np.array(3)), np.random.default_rng(0), True, False)
def test_native_never_accepts_what_the_reference_refuses(
    space: gs.Space, rng: np.random.Generator, finite: bool, cast: bool
) -> None:
    packer = Packer(Layout(space), finite=finite, cast=cast)
    for _ in range(12):
        value = spoiled(space, value_of(space, rng, finite=finite), rng)
        fast, slow = filled_row(packer.layout), filled_row(packer.layout)
        accepted = attempt(packer, value, slow)
        if packer.fast.pack(value, fast):
            assert accepted, f"only the native packer accepts {value!r}"
            assert fast.tobytes() == slow.tobytes()


@drawn
@given(spaces(), generators, st.booleans())
def test_what_does_not_fit_raises_only_space_errors(space: gs.Space, rng: np.random.Generator, cast: bool) -> None:
    packer = Packer(Layout(space), cast=cast)
    for _ in range(8):
        value = spoiled(space, value_of(space, rng), rng)
        row = filled_row(packer.layout)
        if attempt(packer, value, row):
            again = filled_row(packer.layout)
            packer.pack(packer.unpack(row), again)  # what is accepted can be read back, and is a value itself
            assert same(packer.unpack(again), packer.unpack(row))


NUMBERS = sorted(
    {sign * (2**bits) + near for bits in (0, 3, 7, 8, 15, 31, 32, 62, 63, 64) for near in (-1, 0, 1) for sign in (1, -1)}
)


@pytest.mark.parametrize(
    "space",
    [
        gs.Discrete(5),
        gs.Discrete(5, start=-2),
        gs.Discrete(3, start=2**40),
        gs.Discrete(3, start=-(2**63)),
        gs.Discrete(4, start=2**63 - 4),
        gs.Discrete(2**63 - 1, start=-5),
    ],
    ids=str,
)
def test_discrete_takes_exactly_its_range_in_any_integer_type(space: gs.Discrete) -> None:
    packer = Packer(Layout(space))
    for number in (
        *NUMBERS,
        int(space.start) - 1,
        int(space.start),
        int(space.start) + int(space.n) - 1,
        int(space.start) + int(space.n),
    ):
        forms: list[Any] = [number]
        for name in ("int8", "uint8", "int16", "int32", "int64", "uint64", "longlong"):
            if np.iinfo(name).min <= number <= np.iinfo(name).max:
                forms += [np.dtype(name).type(number), np.array(number, name)]
        inside = int(space.start) <= number < int(space.start) + int(space.n) and number < 2**63
        for form in forms:
            row = packer.layout.zeros()
            try:
                packer.pack(form, row)
            except SpaceError:
                assert not inside, f"{form!r} refused"
            else:
                assert inside, f"{form!r} accepted"
                assert int(row[()]) == number


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_multi_discrete_takes_exactly_its_range(dtype: str) -> None:
    info = np.iinfo(dtype)
    start = np.array([info.min, 0, info.max - 2], dtype)
    packer = Packer(Layout(gs.MultiDiscrete([3, 3, 3], np.dtype(dtype).type, start=start)))
    good = start + np.array([2, 1, 0], dtype)
    for at in range(3):
        for offset, inside in ((0, True), (2, True), (3, False), (-1, False)):
            number = int(start[at]) + offset
            if not info.min <= number <= info.max:
                continue
            value = good.copy()
            value[at] = number
            for form in (value, value.tolist()):
                row = packer.layout.zeros()
                assert attempt(packer, form, row) is inside
                if native is not None:
                    assert packer.fast.pack(value, row) is inside


def test_multi_binary_takes_zeros_and_ones_only() -> None:
    space = gs.MultiBinary(3)
    assert same(round_trip(space, [1, 0, 1]), np.array([1, 0, 1], np.int8))
    assert "[0, 2, 0] is outside MultiBinary(3)" in refusal(space, np.array([0, 2, 0], np.int8))
    assert "outside" in refusal(space, np.array([0, -1, 0], np.int8))


# --- the rules for dtypes ---


@pytest.mark.parametrize(
    ("space", "value", "fits", "fits_cast"),
    [
        # arrays carry a dtype: it must be the space's
        (gs.Box(-1, 1, (2,)), np.zeros(2, np.float32), True, True),
        (gs.Box(-1, 1, (2,)), np.zeros(2, ">f4"), True, True),
        (gs.Box(-1, 1, (2,)), np.zeros(2, np.float64), False, True),
        (gs.Box(-1, 1, (2,)), np.zeros(2, np.int64), False, True),
        (gs.Box(0, 9, (2,), np.int32), np.zeros(2, np.int64), False, True),
        (gs.Box(0, 9, (2,), np.int64), np.zeros(2, np.longlong), True, True),
        (gs.Box(0, 9, (2,), np.int32), np.zeros(2, np.float32), False, False),
        (gs.Box(0, 9, (2,), np.uint8), np.zeros(2, np.int8), False, False),
        (gs.Box(0, 9, (), np.int32), np.int64(3), False, True),
        (gs.Box(-1, 1, ()), np.float64(0.5), False, True),
        (gs.Box(-1, 1, ()), np.float32(0.5), True, True),
        (gs.MultiDiscrete([3, 3]), np.zeros(2, np.int32), False, True),
        (gs.MultiDiscrete(np.array(3)), np.int32(1), False, True),
        (gs.MultiBinary(2), np.zeros(2, np.int64), False, True),
        (gs.MultiBinary(2), np.zeros(2, bool), False, True),
        (gs.Discrete(3), np.int8(1), True, True),
        (gs.Discrete(3), np.array(1, np.uint64), True, True),
        (gs.Discrete(3), np.bool_(True), True, True),
        (gs.Discrete(3), np.float32(1), False, False),
        # Python numbers and lists carry none: their kind must fit
        (gs.Box(-1, 1, ()), 0.5, True, True),
        (gs.Box(-1, 1, ()), 1, True, True),
        (gs.Box(-1, 1, (2,), np.float16), [0.5, 1], True, True),
        (gs.Box(0, 9, (2,), np.uint8), [1, 255], True, True),
        (gs.Box(0, 9, (2,), np.uint8), (1, 256), False, False),
        (gs.Box(0, 9, (2,), np.uint8), [1, -1], False, False),
        (gs.Box(0, 9, (2,), np.int32), [1.0, 2.0], False, False),
        (gs.Box(0, 9, (2,), np.int32), [True, 2], True, True),
        (gs.Box(0, 1, (), bool), True, True, True),
        (gs.Box(0, 1, (), bool), 1, False, False),
        (gs.Box(0, 9, (0,), np.int32), [], True, True),
        (gs.Box(0, 9, (2,), np.uint64), [2**63 + 1, 0], True, True),
        (gs.Box(0, 9, (2,), np.uint64), [2**63 + 1, 0.0], False, False),
        (gs.Box(0, 9, (2,), np.uint64), [2**63 + 1, -1], False, False),
        (gs.Box(0, 9, (2,), np.int64), [2**63 - 1, -(2**63)], True, True),
        (gs.Box(0, 9, (), np.uint64), -1, False, False),
        (gs.Box(0, 9, (), np.int8), 128, False, False),
        (gs.Discrete(3), True, True, True),
        (gs.Discrete(3), 1.0, False, False),
        # whole numbers are never wrapped, not even by cast
        (gs.Box(0, 9, (2,), np.int8), np.array([1, 200]), False, False),
        (gs.Box(0, 9, (2,), np.int32), np.array([1, 2**31]), False, False),
    ],
    ids=lambda case: repr(case)[:40],
)
def test_dtype_rules(space: gs.Space, value: Any, fits: bool, fits_cast: bool) -> None:
    for cast, expected in ((False, fits), (True, fits_cast)):
        packer = Packer(Layout(space), cast=cast)
        row = packer.layout.zeros()
        assert attempt(packer, value, row) is expected
        if expected:
            assert packer.unpack(row).tolist() == np.asarray(value, space.dtype).tolist()
            packer.pack(value, row)
        else:
            with pytest.raises(SpaceError):
                packer.pack(value, row)


def test_large_whole_numbers_in_lists_stay_exact() -> None:
    space = gs.Box(0, 9, (2,), np.uint64)
    assert round_trip(space, [2**63 + 1, 0]).tolist() == [2**63 + 1, 0]


def test_tensors_are_arrays_with_a_dtype() -> None:
    torch = pytest.importorskip("torch")
    space = gs.Box(-1, 1, (2,))
    assert same(round_trip(space, torch.ones(2)), np.ones(2, np.float32))
    assert "the space says float32, got float64" in refusal(space, torch.ones(2, dtype=torch.float64))
    assert "expected float32[2]" in refusal(space, torch.ones(2, requires_grad=True))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_not_a_number_is_refused_unless_allowed(dtype: Any, bad: float) -> None:
    space = gs.Dict(a=gs.Box(-1, 1, (3, 3), dtype))
    value = {"a": np.zeros((3, 3), dtype)}
    value["a"][1, 2] = bad
    message = refusal(space, value)
    assert message.startswith(f"a: {bad} at index [1, 2]; an observation must be finite") and "check_finite=False" in message
    assert same(round_trip(space, value, finite=False), value)


def test_float_too_wide_for_its_leaf_is_refused_as_infinite() -> None:
    assert "inf at index [0]" in refusal(gs.Box(-1, 1, ()), 1e300)
    assert "inf at index [1]" in refusal(gs.Box(-1, 1, (2,)), np.array([0, 1e300]), cast=True)


# --- what is told to a value that does not fit ---


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (gs.Dict(a=gs.Box(-1, 1, (2,))), {"a": np.zeros(3, np.float32)}, "a: the space says shape [2], got [3]"),
        (
            gs.Dict(a=gs.Box(-1, 1, (2,))),
            {"a": np.zeros(2)},
            "a: the space says float32, got float64. Return value.astype(np.float32)",
        ),
        (gs.Dict(a=gs.Box(-1, 1, (2,))), {"b": 1}, "value: expected the keys ['a']; missing 'a'; unknown 'b'"),
        (gs.Dict(a=gs.Box(-1, 1, (2,))), None, "value: expected a dict with keys ['a'], got NoneType None"),
        (gs.Dict(a=gs.Tuple([gs.Discrete(2)])), {"a": (1, 2)}, "a: expected a tuple of 1, got tuple (1, 2)"),
        (gs.Tuple([gs.Discrete(2), gs.Discrete(2)]), (0, 2), "1: 2 is outside Discrete(2)"),
        (gs.Text(3, charset="ab"), "abab", "value: text of 4 characters does not fit max_length=3: 'abab'"),
        (gs.Text(3, charset="ab"), "ax", "value: characters ['x'] are not in the space's charset"),
        (gs.Text(3), 5, "value: expected a str, got int 5"),
        (gs.Box(-1, 1, (2,)), [[1.0], [1.0, 2.0]], "value: expected float32[2], got list [[1.0], [1.0, 2.0]]"),
        (gs.Box(-1, 1, (2,)), None, "value: expected float32[2], got NoneType None"),
        (gs.OneOf([gs.Discrete(2)]), 0, "value: expected (choice below 1, value), got int 0"),
        (gs.OneOf([gs.Discrete(2)]), (1, 0), "choice: 1 is outside Discrete(1)"),
        (gs.OneOf([gs.Discrete(2)]), (0.5, 0), "choice: the space says int64, got float 0.5"),
        (
            bound(gs.Sequence(gs.Discrete(2)), 2),
            (0, 1, 0),
            "a Sequence of 3 does not fit the declared maximum of 2; raise it with fugu.spaces.bound(space, max_length=3)",
        ),
        (bound(gs.Sequence(gs.Discrete(2)), 2), (0, 5), "items: 5 is outside Discrete(2)"),
        (bound(gs.Sequence(gs.Discrete(2)), 2), 7, "value: expected a tuple of values, got int 7"),
        (bound(gs.Sequence(gs.Discrete(2), stack=True), 2), 7, "items: expected stacked values, got int 7"),
    ],
    ids=lambda case: repr(case)[:40],
)
def test_refusals_name_the_leaf_what_was_expected_and_what_came(space: gs.Space, value: Any, message: str) -> None:
    assert message in refusal(space, value)


def test_stacked_parts_of_different_length_are_refused_not_cut() -> None:
    space = bound(gs.Sequence(gs.Dict(a=gs.Discrete(2), b=gs.Box(0, 1, (2,))), stack=True), 4)
    uneven = {"a": np.zeros(3, np.int64), "b": np.zeros((2, 2), np.float32)}
    assert "expected parts stacked to one length, got lengths [3, 2]" in refusal(space, uneven)


@pytest.mark.parametrize("make", [OrderedDict, lambda items: type("Sub", (dict,), {})(items)])
def test_other_dicts_are_dicts(make: Any) -> None:
    space = gs.Dict(a=gs.Discrete(3), b=gs.Discrete(3))
    assert round_trip(space, make({"b": 1, "a": 2})) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("space", "row", "message"),
    [
        (gs.Discrete(2), np.int64(5), "expected 0..1"),
        (gs.OneOf([gs.Discrete(2)]), np.array([3, 0]), "the row holds 3, expected 0..0"),
        (bound(gs.Sequence(gs.Discrete(2)), 2), np.array([-1, 0, 0]), "the row holds -1, expected 0..2"),
        (gs.Text(2, charset="ab"), np.array([1, 3], np.uint8), "the row holds 3, expected 0..2"),
    ],
)
def test_rows_that_hold_no_value_are_refused(space: gs.Space, row: Any, message: str) -> None:
    if isinstance(space, gs.Discrete):
        assert Packer(Layout(space)).unpack(row) == 5  # a number is a number; ranges are checked on the way in
        return
    with pytest.raises(SpaceError, match=message):
        Packer(Layout(space)).unpack(row)


# --- memory ---


@needs_native
def test_native_writes_only_into_a_row_of_its_layout() -> None:
    space = gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.Discrete(3))
    packer = Packer(Layout(space))
    value = {"a": np.ones(2, np.float32), "b": 1}
    readonly = packer.layout.zeros()
    readonly.flags.writeable = False
    wrong = [np.zeros(8, np.uint8), np.zeros(32, np.uint8), np.zeros((1, 16), np.uint8), np.zeros(16, np.int8)]
    wrong += [np.zeros(2, np.float64), np.zeros(32, np.uint8)[::2], readonly, bytearray(16)]
    for row in wrong:
        before = bytes(row)
        assert packer.fast.pack(value, row) is False
        assert bytes(row) == before
    with pytest.raises(SpaceError, match=r"a row of this layout is uint8\[16\], got uint8\[8\]"):
        packer.pack(value, np.zeros(8, np.uint8))


@needs_native
def test_native_plans_that_reach_beyond_their_row_are_refused() -> None:
    leaf = ("array", 8, np.dtype(np.float32).num, (3,), False, False, None)
    with pytest.raises(ValueError, match="a leaf lies outside the row"):
        native.Plan(("row", np.dtype(np.uint8).num, (16,), leaf))
    with pytest.raises(ValueError, match="one range per element"):
        native.Plan(("row", np.dtype(np.uint8).num, (20,), (*leaf[:6], (b"", b""))))


@needs_native
def test_native_row_writer_refuses_memory_that_is_not_its_own() -> None:
    packer = Packer(Layout(gs.Box(-1, 1, (4,))))
    obs, reward, flags = np.zeros(4, np.float32), np.zeros(1, np.float32), [np.zeros(1, bool) for _ in range(4)]
    native.RowWriter(packer.fast, obs, reward, *flags)
    for wrong in (np.zeros(3, np.float32), np.zeros(4), np.zeros((2, 4), np.float32)[0, ::2], [0.0] * 4):
        with pytest.raises(TypeError, match="obs must be one row of the plan"):
            native.RowWriter(packer.fast, wrong, reward, *flags)
    with pytest.raises(TypeError, match="reward must be float32"):
        native.RowWriter(packer.fast, obs, np.zeros(1), *flags)
    with pytest.raises((TypeError, RuntimeError)):
        native.RowWriter("not a plan", obs, reward, *flags)


def test_one_number_rows_must_be_given_as_arrays() -> None:
    packer = Packer(Layout(gs.Discrete(3)))
    rows = packer.layout.zeros(2)
    packer.pack(2, rows[1, ...])
    assert rows.tolist() == [0, 2]
    with pytest.raises(SpaceError, match=r"take rows\[i, ...\], not rows\[i\]"):
        packer.pack(2, rows[1])


def test_value_may_be_a_view_of_the_row_itself() -> None:
    packer = Packer(Layout(gs.Dict(a=gs.Box(-1, 1, (4,)), b=gs.Discrete(2))))
    row = packed(packer, {"a": np.arange(4, dtype=np.float32), "b": 1})
    packer.pack(packer.layout.views(row), row)
    assert packer.unpack(row)["a"].tolist() == [0, 1, 2, 3]


@needs_native
def test_packing_keeps_no_references() -> None:
    space = gs.Dict(a=gs.Box(-1, 1, (2,)), t=gs.Tuple([gs.Discrete(3), gs.Text(3)]), d=gs.Dict({(7, "k"): gs.Discrete(9)}))
    packer = Packer(Layout(space))
    good = {"a": np.ones(2, np.float32), "t": (np.int32(1), "abc"), "d": {(7, "k"): 2}}
    bad = {**good, "t": (np.int32(5), "abc")}
    short = {"a": good["a"], "t": good["t"]}
    row = packer.layout.zeros()
    key = next(iter(space["d"].spaces))
    tracked = [good, bad, short, good["a"], good["t"], good["t"][0], bad["t"][0], good["d"], row, key]
    before = [sys.getrefcount(item) for item in tracked]
    for _ in range(500):
        assert packer.fast.pack(good, row) is True
        assert packer.fast.pack(bad, row) is False
        assert packer.fast.pack(short, row) is False
    assert [sys.getrefcount(item) for item in tracked] == before


class Meddler:
    """A dict key that equals another and empties a dict when compared."""

    def __init__(self, victim: dict[Any, Any] | None = None) -> None:
        self.victim = victim

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        for meddler in (self, other):
            if isinstance(meddler, Meddler) and meddler.victim is not None:
                meddler.victim.clear()
        return isinstance(other, Meddler)


class MeddlingInt(np.int32):
    victim: Any = None

    def __index__(self) -> int:
        type(self).victim.clear()
        return 1


def test_dict_emptied_while_it_is_packed_is_refused() -> None:
    space = gs.Dict({Meddler(): gs.Tuple([gs.Box(-1, 1, (1000,)), gs.Discrete(3)]), "z": gs.Discrete(3)})
    packer = Packer(Layout(space))
    row = packer.layout.zeros()
    for _ in range(20):
        value: dict[Any, Any] = {}
        value[Meddler(value)] = (np.ones(1000, np.float32), 1)
        value["z"] = 1
        with pytest.raises((SpaceError, RuntimeError, KeyError)):
            packer.pack(value, row)


@needs_native
def test_dict_emptied_by_a_number_is_refused() -> None:
    space = gs.Dict(a=gs.Dict(x=gs.Discrete(3), y=gs.Box(-1, 1, (1000,))), b=gs.Discrete(3))
    packer = Packer(Layout(space))
    for _ in range(20):
        value = {"a": {"x": MeddlingInt(1), "y": np.ones(1000, np.float32)}, "b": 1}
        MeddlingInt.victim = value
        assert packer.fast.pack(value, packer.layout.zeros()) is False


class BadKey:
    def __hash__(self) -> int:
        return hash("a")

    def __eq__(self, other: object) -> bool:
        raise OSError("no comparison")


@needs_native
def test_error_inside_a_lookup_leaves_no_error_behind() -> None:
    packer = Packer(Layout(gs.Dict(a=gs.Discrete(3))))
    assert packer.fast.pack({BadKey(): 1}, packer.layout.zeros()) is False


# --- what others lose ---


def test_text_is_kept_whole() -> None:
    """PufferLib cuts "hello" to "he"."""
    space = gs.Dict(greeting=gs.Text(10), n=gs.Discrete(2))
    assert round_trip(space, {"greeting": "hello", "n": 1}) == {"greeting": "hello", "n": 1}


def test_text_of_nothing_is_text() -> None:
    assert round_trip(gs.Text(3, min_length=0), "") == ""
    assert round_trip(gs.Text(0, min_length=0, charset=""), "") == ""
    assert "expected a str" in refusal(gs.Text(0, min_length=0, charset=""), np.zeros(0, np.uint8))


def test_discrete_observations_are_kept() -> None:
    """PufferLib 3.0 makes Discrete(n) an empty Box and cannot build a Tuple of three."""
    assert round_trip(gs.Discrete(16), 11) == 11
    assert round_trip(gs.Tuple([gs.Discrete(32), gs.Discrete(11), gs.Discrete(2)]), (21, 10, 1)) == (21, 10, 1)
    assert round_trip(gs.Discrete(3, start=2**40), 2**40 + 2) == 2**40 + 2


def test_mixed_nested_actions_are_kept() -> None:
    space = gs.Dict(move=gs.Box(-1, 1, (2,)), keys=gs.MultiBinary(3), mode=gs.Tuple([gs.Discrete(2, start=1)]))
    value = {"keys": np.array([1, 0, 1], np.int8), "mode": (np.int64(2),), "move": np.array([0.25, -1], np.float32)}
    found = round_trip(space, value)
    assert same({key: found[key] for key in value}, value)


def test_minigrid_missions_come_back_word_for_word() -> None:
    """PufferLib cuts "get to the green goal square" to "ge"."""
    import itertools

    pytest.importorskip("minigrid")
    from minigrid.core.mission import MissionSpace
    from minigrid.envs import FetchEnv, GoToObjectEnv, PutNearEnv

    spaces_found = [
        FetchEnv().observation_space["mission"],
        GoToObjectEnv().observation_space["mission"],
        PutNearEnv().observation_space["mission"],
        MissionSpace(lambda: "get to the green goal square"),
    ]
    for space in spaces_found:
        packer = Packer(Layout(gs.Dict(mission=space, direction=gs.Discrete(4))))
        for words in itertools.product(*(space.ordered_placeholders or [])):
            mission = space.mission_func(*words)
            row = packer.layout.zeros()
            packer.pack({"mission": mission, "direction": 3}, row)
            assert packer.unpack(row) == {"mission": mission, "direction": 3}


def test_missions_too_many_to_list_still_fit() -> None:
    pytest.importorskip("minigrid")
    from minigrid.core.mission import MissionSpace

    words = [[f"{letter}{'o' * n}" for n in range(20)] for letter in "abcde"]
    space = MissionSpace(lambda v, w, x, y, z: f"go {v} {w} {x} {y} {z}!", words)
    longest = space.mission_func(*(options[-1] for options in words))
    assert Layout(space).row_shape == (len(longest),)
    assert round_trip(space, longest) == longest
    assert round_trip(space, "go a b c d e!") == "go a b c d e!"


def test_missions_of_babyai_fit_although_its_space_does_not_describe_them() -> None:
    pytest.importorskip("minigrid")
    from minigrid.envs.babyai.core.roomgrid_level import BabyAIMissionSpace

    mission = "put the purple ball in front of you next to the yellow box on your right, then open the red door"
    assert round_trip(BabyAIMissionSpace(), mission) == mission
