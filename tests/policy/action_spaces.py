"""Random action spaces for the property tests of ``fugu.policy``."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces as gs
from hypothesis import strategies as st

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]

discretes = st.builds(lambda n, start: gs.Discrete(n, start=start), st.integers(1, 6), st.sampled_from([0, 0, 5, -3, 2**40]))
multi_binaries = st.sampled_from([1, 3, (2, 2)]).map(gs.MultiBinary)


@st.composite
def multi_discretes(draw: st.DrawFn) -> gs.MultiDiscrete:
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    counts = np.array(draw(st.lists(st.integers(1, 5), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))))
    start = draw(st.sampled_from([0, 0, np.iinfo(dtype).min, np.iinfo(dtype).max - 5]))
    return gs.MultiDiscrete(counts.reshape(shape), dtype.type, start=np.full(shape, start, dtype))


@st.composite
def boxes(draw: st.DrawFn) -> gs.Box:
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    dtype = np.dtype(draw(st.sampled_from([*FLOATS, *INTEGERS, "bool"])))
    if dtype.kind == "b":
        return gs.Box(0, 1, shape, np.bool_)
    if dtype.kind != "f":
        info = np.iinfo(dtype)
        near = info.max - 7 if info.bits < 64 else info.max // 5  # a narrow range at the end of 64 bits holds no double
        low = draw(st.sampled_from([info.min, info.max // 3, near]))
        high = draw(st.sampled_from([info.max, info.max - 1, max(near, info.max // 2)]))
        return gs.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), dtype=dtype.type)
    least, most = (-60000.0, 60000.0) if dtype == np.float16 else (-1e30, 1e30)
    low = [draw(st.sampled_from([-np.inf, least, -1.0, 0.1, 0.0])) for _ in range(int(np.prod(shape)))]
    high = [draw(st.sampled_from([np.inf, most, 1.1, 0.3, max(bottom, least)])) for bottom in low]
    return gs.Box(np.array(low, dtype).reshape(shape), np.array(high, dtype).reshape(shape), dtype=dtype.type)


leaves = st.one_of(discretes, multi_discretes(), multi_binaries, boxes())


@st.composite
def action_spaces(draw: st.DrawFn, depth: int = 2) -> gs.Space:
    kind = draw(st.sampled_from(["leaf", "dict", "tuple", "one of"])) if depth else "leaf"
    if kind == "leaf":
        return draw(leaves)
    parts = draw(st.lists(action_spaces(depth - 1), min_size=1, max_size=3))
    if kind == "dict":
        return gs.Dict(dict(zip("abc", parts, strict=False)))
    return gs.Tuple(parts) if kind == "tuple" else gs.OneOf(parts)
