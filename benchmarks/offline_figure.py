"""The picture in docs/offline.md, from the numbers in benchmarks/results/offline.json: python benchmarks/offline_figure.py"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
SIDE, LEFT, TOP, GAP = 250, 62, 44, 150
OURS, OTHER = "#1f8f8a", "#b9bec4"


def main() -> None:
    record = json.loads((ROOT / "benchmarks/results/offline.json").read_text())
    found = {name: part for each in record for name, part in each["results"].items()}
    names = [name for name in ("cartpole", "pendulum") if name in found]
    parts = [panel(found[name], LEFT + i * (SIDE + GAP)) for i, name in enumerate(names)]
    width, height = LEFT + len(names) * (SIDE + GAP), TOP + SIDE + 56
    body = "\n".join(parts)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
    svg += f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    (ROOT / "docs/images/offline.svg").write_text(svg)


def panel(case: dict, x: int) -> str:
    """Draw asked for against achieved, with the seeds as dots, and lines for what the others achieved."""
    asked, mean = case["returns"]["targets"], case["summary"]["dt"]
    every = [value for one in case["seeds"] for value in one["dt"]["achieved"]]
    low, high = min(*asked, *every), max(*asked, *every)
    place = lambda value: (value - low) / (high - low) * SIDE  # noqa: E731
    point = lambda a, b: f"{x + place(a):.1f},{TOP + SIDE - place(b):.1f}"  # noqa: E731
    out = [text(x, TOP - 18, f"{case['env']}: asked for and achieved", size=14, weight="bold")]
    out.append(f'<rect x="{x}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="{OTHER}"/>')
    out.append(
        f'<polyline points="{point(low, low)} {point(high, high)}" stroke="{OTHER}" stroke-dasharray="4 4" fill="none"/>'
    )
    drawn: list[float] = []
    for label, title in (("bc", "bc"), ("bc_top", "bc --bc.top 0.1"), ("iql", "iql"), ("td3bc", "td3bc")):
        if label in case["summary"]:
            y = TOP + SIDE - place(case["summary"][label])
            out.append(f'<line x1="{x}" x2="{x + SIDE}" y1="{y:.1f}" y2="{y:.1f}" stroke="{OTHER}"/>')
            while any(abs(y - other) < 12 for other in drawn):
                y += 12
            drawn.append(y)
            out.append(text(x + SIDE + 6, y + 4, title, size=11, color="#5b6168"))
    out.append(f'<polyline points="{" ".join(map(point, asked, mean))}" stroke="{OURS}" stroke-width="2" fill="none"/>')
    for one in case["seeds"]:
        for target, got in zip(asked, one["dt"]["achieved"], strict=True):
            cx, cy = point(target, got).split(",")
            out.append(f'<circle cx="{cx}" cy="{cy}" r="3" fill="{OURS}" fill-opacity="0.5"/>')
    for value in (low, high):
        out.append(text(x + place(value), TOP + SIDE + 16, f"{value:.0f}", size=11, anchor="middle"))
        out.append(text(x - 6, TOP + SIDE - place(value) + 4, f"{value:.0f}", size=11, anchor="end"))
    out.append(text(x + SIDE / 2, TOP + SIDE + 34, "return asked for", size=11, color="#5b6168", anchor="middle"))
    return "\n".join(out)


def text(
    x: float, y: float, words: str, *, size: int, weight: str = "normal", color: str = "#22272e", anchor: str = "start"
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{color}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{words}</text>'


if __name__ == "__main__":
    main()
