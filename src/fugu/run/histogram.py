"""Returns and lengths of recorded episodes as a picture: how many episodes have which, for each data set or each source in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fugu.data.dataset import DataSet
from fugu.errors import ConfigError, FuguError, MissingExtra, shown_line
from fugu.run.curves import KINDS

BINS = 40
MOST = 10
"""sources that are told apart"""


def plot(parts: Sequence[DataSet], names: Sequence[str], path: Path) -> None:
    """Draw the episodes of ``parts``, of one alone by source, and write the picture to ``path``."""
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"a plot is a {', '.join(KINDS)} file, got {str(path)!r}; try {path.with_suffix('.png')}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("plotting", "plot") from None
    figure = Figure(figsize=(10, 3.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display
    groups = _groups(parts, names)
    for number, (label, column) in enumerate((("return", "returns"), ("length in steps", "lengths")), 1):
        axes = figure.add_subplot(1, 2, number)
        values = [getattr(data, column)[np.isfinite(data.returns)] for _, data in groups]
        axes.hist(values, bins=BINS, stacked=True, label=[name for name, _ in groups])
        axes.set_xlabel(f"{label} of an episode")
        axes.set_ylabel("episodes")
        if number == 1:
            axes.legend(fontsize=7)
    try:
        figure.savefig(path)
    except OSError as error:
        raise FuguError(f"{path} cannot be written: {error.strerror}") from None


def _groups(parts: Sequence[DataSet], names: Sequence[str]) -> list[tuple[str, DataSet]]:
    if len(parts) > 1:
        return [(shown_line(name).replace("$", r"\$"), data) for name, data in zip(names, parts, strict=True)]
    data = parts[0]
    if not 1 < len(data.sources) <= MOST:
        return [("all episodes", data)]
    texts = [", ".join(f"{key} {value}" for key, value in source.items()) for source in data.sources]
    own = [(shown_line(text).replace("$", r"\$"), data.select(data.source == k)) for k, text in enumerate(texts)]
    return [(text, part) for text, part in own if part.episodes]
