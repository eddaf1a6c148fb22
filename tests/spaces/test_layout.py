"""Where leaves lie: alignment, overlap, views, and what a space that cannot be laid out is told."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import given, settings
from hypothesis import strategies as st

from fugu.errors import SpaceError
from fugu.spaces import Layout, bound, convert
from tests.spaces.strategies import spaces

drawn = settings(deadline=None, max_examples=100)


@drawn
@given(spaces())
def test_leaves_are_aligned_inside_the_row_and_do_not_overlap(space: gs.Space) -> None:
    layout = Layout(space)
    end = 0
    for leaf in layout.leaves:
        assert leaf.offset % leaf.dtype.itemsize == 0
        assert leaf.offset >= end
        end = leaf.offset + leaf.nbytes
    assert end <= layout.nbytes
    widest = max((leaf.dtype.itemsize for leaf in layout.leaves), default=1)
    assert layout.nbytes % widest == 0
    assert layout.nbytes - end < widest
    assert layout.dtype.itemsize * int(np.prod(layout.row_shape)) == layout.nbytes


@drawn
@given(spaces())
def test_row_has_the_dtype_all_leaves_share(space: gs.Space) -> None:
    layout = Layout(space)
    dtypes = {leaf.dtype for leaf in layout.leaves}
    assert layout.dtype == (dtypes.pop() if len(dtypes) == 1 else np.uint8)
    assert layout.dtype.isnative
    if len(layout.leaves) == 1:
        assert layout.row_shape == layout.leaves[0].shape


@drawn
@given(spaces(), st.sampled_from([(), (1,), (3,), (2, 4), (0,)]))
def test_leaf_views_share_the_memory_of_their_own_bytes(space: gs.Space, batch: tuple[int, ...]) -> None:
    layout = Layout(space)
    rows = layout.zeros(*batch)
    flat = rows.reshape(-1).view(np.uint8) if rows.size else rows
    for leaf, view in zip(layout.leaves, layout.leaf_views(rows), strict=True):
        assert view.dtype == leaf.dtype and view.shape == (*batch, *leaf.shape)
        if not view.size:
            continue
        flat[...] = 0
        ones = b"\1" if leaf.dtype == bool else b"\xff"
        view[...] = np.frombuffer(ones * leaf.nbytes, leaf.dtype).reshape(leaf.shape)
        at = flat.reshape(-1, layout.nbytes) != 0
        expected = np.zeros_like(at)
        expected[:, leaf.offset : leaf.offset + leaf.nbytes] = True
        assert (at == expected).all()


@drawn
@given(spaces())
def test_views_have_the_structure_of_the_space(space: gs.Space) -> None:
    layout = Layout(space)

    def walk(part: gs.Space, found: Any, lead: tuple[int, ...]) -> int:
        if isinstance(part, gs.Dict):
            assert list(found) == list(part.spaces)
            return sum(walk(sub, found[key], lead) for key, sub in part.spaces.items())
        if isinstance(part, gs.Tuple):
            assert isinstance(found, tuple)
            return sum(walk(sub, child, lead) for sub, child in zip(part.spaces, found, strict=True))
        if isinstance(part, gs.OneOf):
            assert found["choice"].shape == lead
            return 1 + sum(walk(sub, child, lead) for sub, child in zip(part.spaces, found["options"], strict=True))
        if isinstance(part, gs.Sequence):
            assert found["length"].shape == lead
            return 1 + walk(part.feature_space, found["items"], (*lead, part.fugu_max_length))  # type: ignore[attr-defined]
        shape = (part.max_length,) if isinstance(part, gs.Text) else part.shape
        assert found.shape == (*lead, *shape)
        assert isinstance(part, gs.Text) or found.dtype == part.dtype
        return 1

    assert walk(space, layout.views(layout.zeros(5)), (5,)) == len(layout.leaves)


@drawn
@given(spaces())
def test_layout_is_the_same_in_another_process(space: gs.Space) -> None:
    layout = Layout(space)
    again = Layout(pickle.loads(pickle.dumps(space)))
    assert again == layout and hash(again) == hash(layout) and again.root.keys == layout.root.keys


def test_nested_leaves_lie_where_their_own_alignment_puts_them() -> None:
    """PufferLib 3.0 places d at 10 and reads y from 4 although numpy wrote it at 8: wrong numbers, no error."""
    inner = gs.Dict(x=gs.Box(0, 255, (1,), np.uint8), y=gs.Box(-1, 1, (1,), np.float32))
    space = gs.Dict(
        a=gs.Box(0, 255, (1,), np.uint8), b=inner, c=gs.Box(0, 255, (3,), np.uint8), d=gs.Box(-9, 9, (2,), np.int16)
    )
    layout = Layout(space)
    assert {leaf.name: leaf.offset for leaf in layout.leaves} == {"a": 0, "b/x": 1, "b/y": 4, "c": 8, "d": 12}
    assert layout.nbytes == 16 and layout.dtype == np.uint8 and layout.row_shape == (16,)


@pytest.mark.parametrize(
    ("space", "dtype", "row_shape"),
    [
        (gs.Discrete(7), np.int64, ()),
        (gs.Tuple([gs.Discrete(3), gs.Discrete(4), gs.Discrete(5)]), np.int64, (3,)),
        (gs.Box(0, 255, (4, 4, 3), np.uint8), np.uint8, (4, 4, 3)),
        (gs.Dict(a=gs.Box(-1, 1, (2, 2)), b=gs.Box(-1, 1)), np.float32, (5,)),
        (gs.Tuple([gs.Box(-1, 1), gs.Discrete(2)]), np.uint8, (16,)),
        (gs.Tuple([]), np.uint8, (0,)),
        (gs.Box(-1, 1, (0, 2)), np.float32, (0, 2)),
        (gs.Box(-1, 1, (2,), np.dtype(">f4")), np.dtype("=f4"), (2,)),
        (gs.Box(-1, 1, (2,), np.longlong), np.int64, (2,)),
    ],
)
def test_rows_of_common_spaces(space: gs.Space, dtype: Any, row_shape: tuple[int, ...]) -> None:
    layout = Layout(space)
    assert (layout.dtype, layout.row_shape) == (np.dtype(dtype), row_shape)
    assert layout.zeros(3).shape == (3, *row_shape)


@pytest.mark.parametrize(("characters", "dtype"), [(255, np.uint8), (256, np.uint16), (65535, np.uint16), (65536, np.uint32)])
def test_text_codes_are_as_narrow_as_the_charset_allows(characters: int, dtype: Any) -> None:
    charset = frozenset(map(chr, range(characters)))
    assert Layout(gs.Text(2, charset=charset)).dtype == dtype


@pytest.mark.parametrize(
    "start, n, high", [(-3, 4, 0), (2**40, 2, 2**40 + 1), (-(2**63), 2**62, -(2**62) - 1), (2**63 - 4, 4, 2**63 - 1)]
)
def test_choice_range_is_exact_at_the_ends_of_int64(start: int, n: int, high: int) -> None:
    (leaf,) = Layout(gs.Discrete(n, start=start)).leaves
    found = leaf.choice_range()
    assert found is not None
    assert (int(found[0]), int(found[1])) == (start, high)


def test_views_work_on_strided_batches_of_whole_rows() -> None:
    layout = Layout(gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.Discrete(3)))
    rows = layout.zeros(4, 6)
    every_second, swapped = rows[:, ::2], rows.swapaxes(0, 1)
    layout.views(every_second)["a"][1, 2] = 7
    layout.views(swapped)["b"][5, 3] = 2
    assert (layout.views(rows)["a"][1, 4] == 7).all() and layout.views(rows)["b"][3, 5] == 2


def test_views_refuse_rows_that_are_not_the_layouts() -> None:
    layout = Layout(gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.Discrete(3)))
    with pytest.raises(SpaceError, match=r"expected rows uint8\[..., 16\], got float32\[4, 16\]"):
        layout.views(np.zeros((4, 16), np.float32))
    with pytest.raises(SpaceError, match=r"expected rows uint8\[..., 16\], got uint8\[4, 15\]"):
        layout.views(np.zeros((4, 15), np.uint8))
    with pytest.raises(SpaceError, match=r"got uint8\[\]"):
        layout.views(np.zeros((), np.uint8))
    with pytest.raises(SpaceError, match=r"each row must be contiguous, got strides \(1, 4\)"):
        layout.views(np.zeros((16, 4), np.uint8).T)


def test_dict_keys_need_not_be_strings() -> None:
    space = gs.Dict({0: gs.Discrete(2), (1, "x"): gs.Discrete(3), None: gs.Box(-1, 1)})
    layout = Layout(space)
    assert set(layout.views(layout.zeros(2))) == {0, (1, "x"), None}
    assert {leaf.name for leaf in layout.leaves} == {"0", "(1, 'x')", "None"}


def test_sequence_without_maximum_names_its_path_and_the_call_that_declares_it() -> None:
    space = gs.Dict(a=gs.Tuple([gs.Discrete(2), gs.Sequence(gs.Box(-1, 1))]))
    with pytest.raises(SpaceError, match=r"space 'a/1': .*fugu\.spaces\.bound\(space\['a'\]\[1\], max_length=32\)"):
        Layout(space)
    bound(eval("space['a'][1]", {"space": space}), max_length=32)
    assert Layout(space).leaves[2].shape == (32, 1)


def test_sequence_inside_a_sequence_is_reached_through_its_feature_space() -> None:
    space = gs.Dict(items=bound(gs.Sequence(gs.Sequence(gs.Discrete(2))), 3))
    with pytest.raises(SpaceError, match=r"bound\(space\['items'\]\.feature_space, max_length=32\)") as caught:
        Layout(space)
    assert "space 'items/items'" in str(caught.value)
    bound(space["items"].feature_space, 2)
    assert [leaf.shape for leaf in Layout(space).leaves] == [(), (3,), (3, 2)]


def test_bound_refuses_what_it_cannot_bound() -> None:
    with pytest.raises(SpaceError, match="bound\\(\\) takes a Sequence space, got Box"):
        bound(gs.Box(-1, 1), 3)  # type: ignore[arg-type]
    for wrong in (0, -1, 2.5, "3"):
        with pytest.raises(SpaceError, match="must be a whole number of at least 1"):
            bound(gs.Sequence(gs.Discrete(2)), wrong)  # type: ignore[arg-type]


def test_graph_is_told_what_to_declare_instead() -> None:
    with pytest.raises(SpaceError, match=r"space 'g': Graph .* not supported\. Instead declare a Dict with padded arrays"):
        Layout(gs.Dict(g=gs.Graph(gs.Box(-1, 1), gs.Discrete(3))))


def test_unknown_space_class_is_named() -> None:
    class Colour(gs.Space):
        pass

    with pytest.raises(SpaceError, match=r"the space: Colour is not a space fugu can lay out\. Supported: Box, Discrete"):
        Layout(Colour())
    with pytest.raises(SpaceError, match=r"expected a Gymnasium space, got builtins\.int: 3"):
        Layout(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.complex64, np.longdouble])
def test_dtype_without_a_tensor_counterpart_is_refused(dtype: Any) -> None:
    space = gs.Box(-1, 1, (2,))
    space.dtype = np.dtype(dtype)  # Gymnasium itself refuses complex numbers, custom subclasses need not
    with pytest.raises(SpaceError, match=rf"space 'z': dtype {np.dtype(dtype)} is not supported; use a bool, integer or float"):
        Layout(gs.Dict(z=space))


def test_spaces_of_the_old_gym_package_are_converted() -> None:
    def old(kind: str, **fields: Any) -> Any:
        return type(kind, (), fields)()

    box = old("Box", low=np.zeros(2, np.float32), high=np.ones(2, np.float32), dtype=np.dtype(np.float32))
    space = old("Dict", spaces={"a": box, "b": old("Tuple", spaces=[old("Discrete", n=3), old("MultiBinary", n=4)])})
    expected = gs.Dict(a=gs.Box(0, 1, (2,)), b=gs.Tuple([gs.Discrete(3), gs.MultiBinary(4)]))
    assert convert(space) == expected
    assert convert(old("MultiDiscrete", nvec=np.array([2, 3]))) == gs.MultiDiscrete([2, 3])


def test_importing_spaces_does_not_import_torch() -> None:
    import subprocess

    code = "import sys, fugu.spaces; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
