"""Pictures made smaller: the native way, the readable way and OpenCV's, to the byte."""

from __future__ import annotations

import numpy as np
import pytest

from fugu.envs.shrink import Reference, shrinker

SHAPES = [
    ((210, 160), (84, 84)),
    ((230, 160), (84, 84)),
    ((250, 160), (84, 84)),
    ((12, 9), (12, 3)),
    ((7, 5), (1, 1)),
    ((4, 4), (4, 4)),
]
"""screens of Atari games, and what is at the edges: whole pixels, one pixel, nothing to do"""


def pictures(shape: tuple[int, int], count: int):
    """Pairs of noise, of a few shades (whose means often lie exactly between two others), and of blocks as games draw them."""
    rng = np.random.default_rng(0)
    for turn in range(count):
        shades = rng.integers(0, 256, 5, dtype=np.uint8)
        few = rng.choice(shades, shape)
        blocks = np.kron(rng.choice(shades, (shape[0] // 3 + 1, shape[1] // 2 + 1)), np.ones((3, 2), np.uint8))
        noise = rng.integers(0, 256, shape, dtype=np.uint8)
        image = np.ascontiguousarray((noise, few, blocks[: shape[0], : shape[1]])[turn % 3])
        yield image, few if turn % 2 else np.zeros(shape, np.uint8)


@pytest.mark.parametrize(("shape", "to"), SHAPES)
def test_native_and_reference_agree(shape, to):
    native, reference = shrinker(shape, to), Reference(shape, to)
    assert type(native) is not Reference
    for image, other in pictures(shape, 30):
        results = []
        for shrink in (native, reference):
            pooled, out = image.copy(), np.full(to, 7, np.uint8)
            shrink(pooled, other, out)
            np.testing.assert_array_equal(pooled, np.maximum(image, other))
            results.append(out)
        np.testing.assert_array_equal(*results)


@pytest.mark.extras
@pytest.mark.parametrize(("shape", "to"), SHAPES[:3])
def test_it_is_what_opencv_makes_of_it(shape, to):
    cv2 = pytest.importorskip("cv2")
    shrink, out = shrinker(shape, to), np.empty(to, np.uint8)
    for image, other in pictures(shape, 300):
        expected = cv2.resize(np.maximum(image, other), to[::-1], interpolation=cv2.INTER_AREA)
        shrink(image, other, out)
        np.testing.assert_array_equal(out, expected)


def test_a_mean_by_hand():
    image = np.array([[0, 10, 20], [30, 40, 50]], np.uint8)
    out = np.zeros((1, 2), np.uint8)  # each new pixel: a whole old one and half of the next, in both rows
    shrinker((2, 3), (1, 2))(image, np.zeros_like(image), out)
    assert out.tolist() == [[round((0 + 30 + 10 / 2 + 40 / 2) / 3), round((20 + 50 + 10 / 2 + 40 / 2) / 3)]]


def test_wrong_pictures_are_refused():
    shrink = shrinker((210, 160), (84, 84))
    good, out = np.zeros((210, 160), np.uint8), np.zeros((84, 84), np.uint8)
    for image, other, target in [
        (good[1:], good, out),
        (good, good.T, out),
        (good, good, out[:, 1:]),
        (good.astype(np.float32), good, out),
        (good, good, np.zeros((84, 83), np.uint8)),
    ]:
        with pytest.raises((TypeError, ValueError)):
            shrink(image, other, target)
    with pytest.raises(ValueError, match="smaller"):
        shrinker((84, 84), (210, 160))
    with pytest.raises(ValueError, match="divisor"):
        shrinker((211, 163), (84, 84))
