"""docs/images/dashboard.svg and curves.svg, from real runs on this machine: python tools/training_pictures.py (needs the extra plot)"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

import fugu
import fugu.run.live
from fugu.run.board import board
from fugu.run.curves import plot
from fugu.run.dashboard import Dashboard

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
WIDTH, HEIGHT = 100, 24
SEEDS = 5


class Photographer(Dashboard):
    """A dashboard that also keeps what it would show three quarters of the way through."""

    lines: list[Text] | None = None

    def update(self, metrics: Mapping[str, float]) -> None:
        super().update(metrics)
        if Photographer.lines is None and metrics["steps"] > 0.75 * self.header.total_steps:
            self._draw(self._started + self.progress.uptime)
            shown = board(self.header, self.progress, WIDTH, HEIGHT)
            Photographer.lines = [Text.assemble(*line) for line in shown]


def dashboard() -> None:
    fugu.run.live.Dashboard = Photographer  # type: ignore[misc]
    fugu.train("breakout", steps=4_000_000)
    fugu.run.live.Dashboard = Dashboard  # type: ignore[misc]
    assert Photographer.lines is not None
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, highlight=False)
        for line in Photographer.lines:
            console.print(line)
        picture = console.export_svg(title="fugu train breakout")
    picture = re.sub(r"@font-face\s*{.*?}", "", picture, flags=re.DOTALL)  # nothing is to be fetched for a picture
    (IMAGES / "dashboard.svg").write_text(picture)


def curves() -> None:
    done = [fugu.train("cartpole", seed=seed) for seed in range(SEEDS)]
    plot([run.folder for run in done], IMAGES / "curves.svg", smooth=3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that the runs are called runs/...
        dashboard()
        curves()
