"""Rows as tensors: the same numbers and the same memory as the numpy views, in eager mode, compiled, and on a GPU."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fugu.errors import SpaceError
from fugu.spaces import Layout, Packer, bound
from tests.spaces.strategies import DTYPES, generators, spaces, value_of
from tests.timing import in_time

torch = pytest.importorskip("torch")
from fugu.spaces.views import INDUCTOR_VIEWS_BOOL, TORCH_DTYPES, leaf_tensors, tensors, write_leaves  # noqa: E402

drawn = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
MIXED = gs.Dict(
    image=gs.Box(0, 255, (4, 4, 3), np.uint8),
    depth=gs.Box(-1, 1, (3, 2, 2), np.float32),
    pick=gs.Discrete(5),
    door=gs.Box(0, 1, (), bool),
    gain=gs.Box(0, 1, (2, 2), np.float16),
    name=gs.Text(5),
    either=gs.OneOf([gs.MultiDiscrete([2, 3]), gs.Tuple([gs.Box(-1, 1, (3,), np.float64)])]),
    many=bound(gs.Sequence(gs.Box(-1, 1, (2,), np.int16)), 3),
)
LAYOUT = Layout(MIXED)


def batch_of_rows(layout: Layout, batch: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Rows with values in them, NaN and infinity among them."""
    packer = Packer(layout, finite=False)
    rows = layout.zeros(*batch)
    for index in np.ndindex(*batch):
        packer.pack(value_of(layout.space, rng, finite=False), rows[(*index, ...)])
    return rows


def bits(tensor: Any) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def lies_inside(view: Any, rows: Any) -> bool:
    """Whether the view's memory is part of the rows' memory."""
    start, size = rows.data_ptr(), rows.numel() * rows.element_size()
    last = sum((length - 1) * stride for length, stride in zip(view.shape, view.stride(), strict=True))
    end = view.data_ptr() + (last + 1) * view.element_size()
    return bool(start <= view.data_ptr() and end <= start + size)


@drawn
@given(spaces(), st.sampled_from([(), (1,), (5,), (2, 3), (0,)]), generators)
def test_leaf_tensors_equal_the_numpy_views_and_share_their_memory(
    space: gs.Space, batch: tuple[int, ...], rng: np.random.Generator
) -> None:
    layout = Layout(space)
    array = batch_of_rows(layout, batch, rng)
    rows = torch.from_numpy(array)
    found = leaf_tensors(layout, rows)
    for view, expected in zip(found, layout.leaf_views(array), strict=True):
        assert tuple(view.shape) == expected.shape
        assert view.dtype == TORCH_DTYPES[expected.dtype.name]
        assert bits(view) == expected.tobytes()
        assert not view.numel() or lies_inside(view, rows)


@drawn
@given(spaces())
def test_tensors_have_the_structure_of_the_numpy_views(space: gs.Space) -> None:
    layout = Layout(space)
    array = layout.zeros(2)

    def alike(left: Any, right: Any) -> bool:
        if isinstance(left, dict):
            return list(left) == list(right) and all(alike(left[key], right[key]) for key in left)
        if isinstance(left, tuple):
            return len(left) == len(right) and all(map(alike, left, right))
        return tuple(left.shape) == right.shape

    assert alike(tensors(layout, torch.from_numpy(array)), layout.views(array))


@drawn
@given(spaces(), st.sampled_from([(4,), (2, 3)]), generators)
def test_written_leaves_make_the_rows_they_came_from(space: gs.Space, batch: tuple[int, ...], rng: np.random.Generator) -> None:
    layout = Layout(space)
    rows = torch.from_numpy(batch_of_rows(layout, batch, rng))
    copy = torch.zeros_like(rows)
    write_leaves(layout, copy, [leaf.clone() for leaf in leaf_tensors(layout, rows)])
    assert bits(copy) == bits(rows)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_has_its_tensor_counterpart(name: str) -> None:
    assert TORCH_DTYPES[name] == torch.from_numpy(np.zeros(1, name)).dtype
    space = gs.Tuple([gs.Box(0, 1, (1,), np.int8), gs.Box(0, 1, (2, 2), np.dtype(name).type)])
    layout = Layout(space)
    assert leaf_tensors(layout, torch.from_numpy(layout.zeros(3)))[1].dtype == TORCH_DTYPES[name]


def test_writing_through_a_view_changes_the_rows() -> None:
    layout = LAYOUT
    array = layout.zeros(2, 3)
    found = tensors(layout, torch.from_numpy(array))
    found["depth"][1, 2] = 0.5
    found["either"]["choice"][0, 1] = 1
    views = layout.views(array)
    assert (views["depth"][1, 2] == 0.5).all() and views["either"]["choice"].tolist() == [[0, 1, 0], [0, 0, 0]]


def test_batches_with_strides_of_their_own_are_viewed_in_place() -> None:
    layout = LAYOUT
    rows = torch.from_numpy(batch_of_rows(layout, (4, 6), np.random.default_rng(0)))
    for part in (rows[:, 2:4], rows[::2, ::3], rows.transpose(0, 1), rows[3], rows[1, 2], rows[:0]):
        expected = layout.leaf_views(part.numpy())
        for view, array in zip(leaf_tensors(layout, part), expected, strict=True):
            assert bits(view) == array.tobytes()
            assert not view.numel() or lies_inside(view, rows)


def test_samples_of_another_width_are_converted_into_the_row() -> None:
    space = gs.Dict(a=gs.MultiBinary(3), b=gs.Discrete(4, start=2), c=gs.Box(-1, 1, (2,)), d=gs.Box(0, 9, (2,), np.uint16))
    layout = Layout(space)
    rows = torch.from_numpy(layout.zeros(2))
    a, b = torch.tensor([[1, 0, 1], [0, 1, 1]]), torch.tensor([5, 2], dtype=torch.int32)
    c, d = torch.tensor([[0.5, -1], [1, 0]], dtype=torch.float64), torch.tensor([[1, 65535], [0, 7]])
    write_leaves(layout, rows, [a, b, c, d])
    values = Packer(layout).unpack_batch(rows.numpy())
    assert [value["a"].tolist() for value in values] == a.tolist()
    assert [value["b"] for value in values] == [5, 2]
    assert [value["c"].tolist() for value in values] == c.tolist()
    assert [value["d"].tolist() for value in values] == d.tolist()


def test_leaves_are_written_into_part_of_a_larger_batch() -> None:
    layout = LAYOUT
    source = torch.from_numpy(batch_of_rows(layout, (4, 2), np.random.default_rng(1)))
    slab = torch.zeros(4, 6, *layout.row_shape, dtype=torch.uint8)
    write_leaves(layout, slab[:, 1:6:3], leaf_tensors(layout, source))
    assert bits(slab[:, [1, 4]]) == bits(source)
    assert not slab[:, [0, 2, 3, 5]].any()


def test_single_leaf_rows_are_the_tensor() -> None:
    layout = Layout(gs.Box(-1, 1, (2, 3)))
    rows = torch.zeros(5, 2, 3)
    assert leaf_tensors(layout, rows)[0] is rows and tensors(layout, rows) is rows
    assert leaf_tensors(layout, rows.transpose(1, 2).contiguous().transpose(1, 2))[0].shape == (5, 2, 3)


def test_rows_that_are_not_the_layouts_are_refused() -> None:
    layout = Layout(gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.Discrete(3)))
    slab = torch.zeros(200, dtype=torch.uint8)
    with pytest.raises(SpaceError, match=r"expected rows uint8\[..., 16\], got float32\[4, 16\]"):
        tensors(layout, torch.zeros(4, 16))
    with pytest.raises(SpaceError, match=r"expected rows uint8\[..., 16\], got uint8\[4, 15\]"):
        tensors(layout, torch.zeros(4, 15, dtype=torch.uint8))
    with pytest.raises(SpaceError, match=r"got uint8\[\]"):
        tensors(layout, torch.zeros((), dtype=torch.uint8))
    with pytest.raises(SpaceError, match=r"each row must be contiguous, got strides \[1, 4\].*rows.contiguous\(\)"):
        tensors(layout, torch.zeros(16, 4, dtype=torch.uint8).T)
    for rows in (slab[3 : 3 + 64].view(4, 16), slab.view(10, 20)[:, :16], slab[:20].view(1, 20)[:, :16]):
        with pytest.raises(SpaceError, match=r"must start at a multiple of 8 items.*rows.clone\(\)"):
            tensors(layout, rows)
    tensors(layout, slab[8 : 8 + 64].view(4, 16))


def test_leaves_that_do_not_fit_are_refused_and_nothing_is_written() -> None:
    layout = Layout(gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.Discrete(3)))
    rows = torch.zeros(4, 16, dtype=torch.uint8)
    good = [torch.ones(4, 2), torch.ones(4, dtype=torch.int64)]
    with pytest.raises(SpaceError, match=r"expected 2 leaves \(a, b\), got 1"):
        write_leaves(layout, rows, good[:1])
    with pytest.raises(SpaceError, match=r"b: expected int64\[4\].*got int64\[4, 1\]"):
        write_leaves(layout, rows, [good[0], good[1][:, None]])
    with pytest.raises(SpaceError, match=r"b: expected int64\[4\].*got float32\[4\]"):
        write_leaves(layout, rows, [good[0], torch.ones(4)])
    assert not rows.any()


# --- compiled ---


def read(rows: Any) -> list[Any]:
    return leaf_tensors(LAYOUT, rows)


def use(rows: Any) -> Any:
    found = tensors(LAYOUT, rows)
    return (
        found["image"].float().mean() + found["depth"].nan_to_num().clamp(-1, 1).sum((-1, -2, -3)) + found["either"]["choice"]
    )


def write(rows: Any, leaves: list[Any]) -> None:
    write_leaves(LAYOUT, rows, leaves)


def compiled(function: Any, backend: str) -> Any:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


def random_rows(device: str) -> Any:
    return torch.from_numpy(batch_of_rows(LAYOUT, (4, 6), np.random.default_rng(0))).to(device)


def parts(rows: Any) -> list[Any]:
    """Batches of several sizes: from the second on, torch takes their axes for symbolic."""
    return [rows, rows[:2], rows[:, 1:4]]


def check_compiled_views(backend: str, device: str) -> None:
    function = compiled(read, backend)
    for rows in parts(random_rows(device)):
        for view, expected in zip(function(rows), read(rows), strict=True):
            assert view.shape == expected.shape and view.dtype == expected.dtype and bits(view) == bits(expected)
            if INDUCTOR_VIEWS_BOOL or view.dtype != torch.bool:
                assert view.data_ptr() == expected.data_ptr() and view.stride() == expected.stride()


def check_compiled_use_and_write(backend: str, device: str) -> None:
    used, written = compiled(use, backend), compiled(write, backend)
    for rows in parts(random_rows(device)):
        torch.testing.assert_close(used(rows), use(rows))
        copy = torch.zeros_like(rows)
        written(copy, [leaf.clone() for leaf in read(rows)])
        assert bits(copy) == bits(rows)


def test_compiled_views_equal_eager_ones_in_one_graph() -> None:
    check_compiled_views("aot_eager", "cpu")


def test_compiled_policies_may_use_the_structure() -> None:
    rows = random_rows("cpu")
    torch.testing.assert_close(compiled(use, "aot_eager")(rows), use(rows))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_reads_and_writes_equal_eager_ones(backend: str) -> None:
    check_compiled_views(backend, "cpu")
    check_compiled_use_and_write(backend, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_reads_and_writes_on_cuda_equal_eager_ones(backend: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check_compiled_views(backend, "cuda")
    check_compiled_use_and_write(backend, "cuda")


@pytest.mark.gpu
@drawn
@given(spaces(), st.sampled_from([(5,), (2, 3)]), generators)
def test_leaf_tensors_on_cuda_equal_the_numpy_views(space: gs.Space, batch: tuple[int, ...], rng: np.random.Generator) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    layout = Layout(space)
    array = batch_of_rows(layout, batch, rng)
    rows = torch.from_numpy(array).cuda()
    found = leaf_tensors(layout, rows)
    for view, expected in zip(found, layout.leaf_views(array), strict=True):
        assert view.is_cuda and view.dtype == TORCH_DTYPES[expected.dtype.name] and tuple(view.shape) == expected.shape
        assert bits(view) == expected.tobytes()
        assert not view.numel() or lies_inside(view, rows)
    copy = torch.zeros_like(rows)
    write_leaves(layout, copy, [leaf.clone() for leaf in found])
    assert bits(copy) == bits(rows)
    on_cpu = torch.from_numpy(layout.zeros(*batch))
    write_leaves(layout, on_cpu, found)
    assert bits(on_cpu) == bits(rows)


# --- fast ---


def test_a_batch_of_1024_mixed_rows_becomes_tensors_in_microseconds() -> None:
    space = gs.Dict(
        image=gs.Box(0, 255, (8, 8), np.uint8), pos=gs.Box(-1, 1, (3,)), pick=gs.Discrete(5), bits=gs.MultiBinary(4)
    )
    layout = Layout(space)
    rows = torch.from_numpy(layout.zeros(1024))
    took = []
    for _ in range(20):
        for _ in range(200):
            start = time.perf_counter()
            tensors(layout, rows)
            took.append(time.perf_counter() - start)
        time.sleep(0.02)  # one slow moment of the machine is not the whole of the measurement
    print(f"1,024 rows of 4 leaves -> tensors: {min(took) * 1e6:.1f} us at best, {np.median(took) * 1e6:.1f} us in the middle")
    in_time(min(took), 50e-6)
