"""The picture in the README, from the numbers in benchmarks/results/vector.json: python benchmarks/figure.py"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
PANELS = {
    "cartpole": "CartPole-v1, 64 envs",
    "cpu": "1 ms of CPU per step, 16 envs",
    "stragglers": "the same, 5% of steps sleep 20 ms",
}
WIDTH, ROW, HEAD, NAMES, BARS = 760, 22, 34, 230, 420


def main() -> None:
    record = json.loads((ROOT / "benchmarks/results/vector.json").read_text())
    y, parts = 30, []
    for case, title in PANELS.items():
        rates = {name: r["median"] for name, r in record["results"][case]["steps_per_s"].items()}
        parts.append(text(16, y, title + ": steps per second", size=14, weight="bold"))
        y += 12
        top = max(rates.values())
        for name, value in sorted(rates.items(), key=lambda item: item[1]):
            color = "#1f8f8a" if name.startswith("fugu") else "#b9bec4"
            parts.append(text(16, y + 15, name, size=12))
            parts.append(
                f'<rect x="{NAMES}" y="{y + 3}" width="{BARS * value / top:.1f}" height="{ROW - 7}" rx="2" fill="{color}"/>'
            )
            parts.append(text(NAMES + BARS * value / top + 8, y + 15, f"{value:,.0f}", size=12))
            y += ROW
        y += HEAD
    machine = record["machine"]
    note = f"{machine['cores']} cores ({machine['cpu']}), medians; benchmarks/vector.py"
    parts.append(text(16, y - 10, note, size=11, color="#5b6168"))
    body = "\n".join(parts)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif">\n'
    svg += f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    out = ROOT / "docs/images/vector.svg"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(svg)


def text(x: float, y: float, content: str, *, size: int, weight: str = "normal", color: str = "#20262d") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" font-weight="{weight}" fill="{color}">{content}</text>'


if __name__ == "__main__":
    main()
