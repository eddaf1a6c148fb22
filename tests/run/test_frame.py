"""Metrics as a DataFrame: joined by update, and one line where no such package is installed."""

from __future__ import annotations

import sys
import types

import pytest

from fugu.errors import ConfigError, NotInstalled
from fugu.run.frame import columns, frame

METRICS = [
    {"updates": 1, "steps": 64, "loss/kl": 0.5},
    {"updates": 2, "steps": 128, "loss/kl": float("nan"), "env/score": 3},
    {"updates": 3, "steps": 192, "loss/kl": 1, "env/score": 2.5},
]
TIMING = [{"updates": 1, "steps": 64, "time/wall": 1.5}, {"updates": 3, "steps": 192, "time/wall": 4}]


def test_metrics_and_timings_are_joined_by_update() -> None:
    found = columns(METRICS, TIMING)
    kl = found.pop("loss/kl")
    assert kl[0] == 0.5 and kl[1] != kl[1] and kl[2] == 1.0
    assert found == {
        "updates": [1, 2, 3],
        "steps": [64, 128, 192],
        "env/score": [None, 3.0, 2.5],
        "time/wall": [1.5, None, 4.0],
    }
    assert columns([], []) == {"updates": [], "steps": []}


def test_without_a_package_for_it_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(NotInstalled, match="^a DataFrame needs pandas or polars: pip install pandas$"):
        frame(METRICS, TIMING)
    with pytest.raises(NotInstalled, match="^a DataFrame needs polars: pip install polars$"):
        frame(METRICS, TIMING, "polars")
    with pytest.raises(ConfigError, match="one of pandas, polars. Did you mean 'pandas'"):
        frame(METRICS, TIMING, "panda")


def test_the_first_package_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", types.SimpleNamespace(DataFrame=lambda table: ("polars", table)))  # type: ignore[arg-type]
    kind, table = frame(METRICS, TIMING)
    assert kind == "polars" and list(table) == ["updates", "steps", "loss/kl", "env/score", "time/wall"]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_frame_has_a_row_per_update(kind: str) -> None:
    pytest.importorskip(kind)
    found = frame(METRICS, TIMING, kind)
    assert found.shape == (3, 5) and list(found["steps"]) == [64, 128, 192]
