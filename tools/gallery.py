"""docs/images/envs.png: one frame of every native environment, after some random steps: python tools/gallery.py (needs pillow)"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import fugu
from fugu.emulation.native import names

TILE, CAPTION, COLUMNS = 200, 18, 6


def frame(name: str) -> Image.Image:
    with fugu.vector.make(name, 1) as vec:
        vec.reset(seed=3)
        rng = np.random.default_rng(0)
        for _ in range(40):
            rows = vec.action_layout.zeros(vec.num_agents)
            for view, leaf in zip(vec.action_layout.leaf_views(rows), vec.action_layout.leaves, strict=True):
                choices = leaf.choice_range()
                if choices is None:
                    view[...] = rng.uniform(-1, 1, view.shape)
                else:
                    view[...] = rng.integers(choices[0], choices[1] + 1, view.shape)
            _, _, terminated, truncated, _ = vec.step(rows)
            if (terminated | truncated).any() and rng.random() < 0.2:
                break
        return Image.fromarray(vec.render()[0])


def main() -> None:
    rows = -(-len(names()) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * TILE, rows * (TILE + CAPTION)), "white")
    draw = ImageDraw.Draw(sheet)
    for i, name in enumerate(names()):
        left, top = i % COLUMNS * TILE, i // COLUMNS * (TILE + CAPTION)
        picture = frame(name)
        picture.thumbnail((TILE - 12, TILE - 12))
        sheet.paste(picture, (left + (TILE - picture.width) // 2, top + CAPTION + (TILE - picture.height) // 2))
        draw.text((left + 8, top + 4), name, fill="black")
    sheet.save(Path(__file__).parent.parent / "docs/images/envs.png", optimize=True)


if __name__ == "__main__":
    main()
