"""What is written is what is read, cut back on resume, and never stops training."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fugu.errors import ConfigError, FuguError, MissingExtra
from fugu.run.sinks import JsonLines, Sinks, open_sinks
from fugu.run.store import RunError, RunFolder
from fugu.trainer.config_parts import LogConfig


def row(update: int) -> dict[str, float]:
    return {
        "steps": 64 * update,
        "updates": update,
        "loss/kl": 0.1 * update,
        "env/score": 3,
        "time/wall": 1.5,
        "system/cpu": 0.5,
    }


def test_what_the_seed_decides_and_what_the_machine_decides_are_kept_apart(tmp_path: Path, no_leaks: None) -> None:
    run = RunFolder(tmp_path)
    sinks = open_sinks(run, LogConfig(), {})
    sinks.write(64, row(1))
    sinks.close()
    assert run.metrics.read_text() == '{"updates": 1, "steps": 64, "loss/kl": 0.1, "env/score": 3}\n'
    assert run.timing.read_text() == '{"updates": 1, "steps": 64, "time/wall": 1.5, "system/cpu": 0.5}\n'


def test_numbers_of_every_kind_become_json(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    values = {"env/a": np.float32(0.1), "env/b": torch.tensor(2), "env/c": float("nan"), "env/d": np.inf, "env/ü": 1e300}
    JsonLines(run).write(np.int64(1), {"updates": np.int64(1), **values})  # type: ignore[arg-type]
    expected = {
        "updates": 1,
        "steps": 1,
        "env/a": float(np.float32(0.1)),
        "env/b": 2,
        "env/c": None,
        "env/d": None,
        "env/ü": 1e300,
    }
    assert json.loads(run.metrics.read_text(), parse_constant=pytest.fail) == expected


def write(run: RunFolder, updates: range, after: int = 0) -> None:
    sinks = open_sinks(run, LogConfig(), {}, after_updates=after)
    for update in updates:
        sinks.write(64 * update, row(update))
    sinks.close()


@pytest.mark.parametrize("torn", [b"", b'{"updates": 8, "ste', b'{"updates": 3, "steps": 192}', b"\0\0\0\n", b"[]\n", b"{}\n"])
@pytest.mark.parametrize("after", [0, 4, 7])
def test_a_resumed_run_leaves_the_file_of_an_uninterrupted_one(tmp_path: Path, torn: bytes, after: int) -> None:
    whole, resumed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "resumed")
    whole.path.mkdir()
    resumed.path.mkdir()
    write(whole, range(1, 11))
    write(resumed, range(1, 8))
    for path in (resumed.metrics, resumed.timing):
        with path.open("ab") as file:
            file.write(torn)
    write(resumed, range(after + 1, 11), after=after)
    assert resumed.metrics.read_bytes() == whole.metrics.read_bytes()
    assert resumed.timing.read_bytes() == whole.timing.read_bytes()


@pytest.mark.parametrize("bad", [b"nonsense\n", b"{}\n", b'{"updates": "4", "steps": 256}\n'])
def test_a_bad_line_in_the_middle_is_told_and_what_follows_it_is_kept(tmp_path: Path, bad: bytes, no_leaks: None) -> None:
    run = RunFolder(tmp_path)
    write(run, range(1, 8))
    lines = run.timing.read_bytes().splitlines(keepends=True)
    run.timing.write_bytes(b"".join([*lines[:3], bad, *lines[4:]]))
    before = run.metrics.read_bytes(), run.timing.read_bytes()
    with pytest.raises(RunError, match=f"timing.jsonl:4 is not a line of metrics: {bad.decode().strip()}$"):
        open_sinks(run, LogConfig(), {}, after_updates=6)
    assert (run.metrics.read_bytes(), run.timing.read_bytes()) == before


def test_a_new_run_does_not_append_to_lines_that_are_there(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write(run, range(1, 4))
    write(run, range(1, 2))
    assert [r["updates"] for r in run.read_metrics()] == [1]


def test_unknown_names_and_lines_without_a_place_are_refused(tmp_path: Path) -> None:
    sinks = open_sinks(RunFolder(tmp_path), LogConfig(), {})
    with pytest.raises(FuguError, match="no metric 'los/kl'"):
        sinks.write(1, {"updates": 1, "los/kl": 1.0})
    with pytest.raises(FuguError, match="must have updates"):
        sinks.write(1, {"loss/kl": 1.0})
    assert RunFolder(tmp_path).metrics.read_bytes() == b""


def test_a_full_disk_costs_lines_but_neither_the_run_nor_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    sinks = open_sinks(run, LogConfig(), {})
    sinks.write(64, row(1))
    real, calls = os.write, []

    def full(descriptor: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) % 2 == 0:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:9])

    monkeypatch.setattr(os, "write", full)
    with pytest.warns(RuntimeWarning, match="metrics.jsonl misses lines from here on: No space left") as caught:
        for update in (2, 3):
            sinks.write(64 * update, row(update))
    assert sorted(str(w.message).split()[0].rsplit("/")[-1] for w in caught) == ["metrics.jsonl", "timing.jsonl"], "once each"
    monkeypatch.undo()
    sinks.write(256, row(4))
    assert [r["updates"] for r in run.read_metrics()] == [r["updates"] for r in run.read_timing()] == [1, 4]


def test_a_file_that_cannot_be_written_is_refused_before_work_starts(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(ConfigError, match="metrics cannot be written to .*metrics.jsonl: Is a directory"):
        open_sinks(RunFolder(tmp_path), LogConfig(), {})


class Broken:
    closed = False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        raise ConnectionError("the service is down")

    def close(self) -> None:
        self.closed = True
        raise ConnectionError("still")


def test_a_sink_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    run, broken = RunFolder(tmp_path), Broken()
    sinks = Sinks([broken, JsonLines(run)])
    with pytest.warns(RuntimeWarning, match="Broken failed and is left out from here on: .*service is down"):
        sinks.write(64, row(1))
    sinks.write(128, row(2))
    sinks.close()
    assert broken.closed and len(run.read_metrics()) == 2


@pytest.mark.parametrize(
    ("log", "module", "extra"),
    [({"tensorboard": True}, "torch.utils.tensorboard", "tb"), ({"wandb": "offline"}, "wandb", "wandb")],
)
def test_a_missing_extra_is_one_line_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: dict, module: str, extra: str, no_leaks: None
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf'needs an extra: pip install "fugu-rl\[{extra}\]"'):
        open_sinks(RunFolder(tmp_path), LogConfig(**log), {})


def test_the_extra_of_tensorboard_brings_what_shows_the_events():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    brought = project["project"]["optional-dependencies"]["tb"]
    assert [re.split("[<>=]", each)[0] for each in brought] == ["tensorboard"]
    assert set(brought) <= set(project["dependency-groups"]["test"])


def test_tensorboard_events_hold_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto import event_pb2

    run = RunFolder(tmp_path)
    sinks = open_sinks(run, LogConfig(tensorboard=True), {})
    sinks.write(64, row(1) | {"env/none": float("nan")})
    sinks.close()
    (path,) = run.events.iterdir()
    data, found, at = path.read_bytes(), {}, 0
    while at < len(data):  # a record: length, its checksum, the event, its checksum
        size = int.from_bytes(data[at : at + 8], "little")
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
        found.update({(event.step, value.tag): value.simple_value for value in event.summary.value})
        at += 16 + size
    assert found[64, "loss/kl"] == pytest.approx(0.1) and found[64, "system/cpu"] == 0.5
    assert (64, "env/none") not in found


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Stands in for the service's package: records what it is called with."""
    fake = types.SimpleNamespace(started={}, logged=[], axes=[], step=-1, finished=0, Settings=lambda **settings: settings)

    def finish() -> None:
        fake.finished += 1

    def log(metrics: Mapping[str, Any], step: int) -> None:
        if step > fake.step:  # it drops what is not above the last it saw, also that of an earlier process
            fake.logged.append((step, metrics))
            fake.step = step

    def define_metric(name: str, step_metric: str | None = None) -> None:
        fake.axes.append((name, step_metric))

    def init(**arguments: Any) -> types.SimpleNamespace:
        fake.started.update(arguments)
        return types.SimpleNamespace(log=log, finish=finish, define_metric=define_metric)

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_weights_and_biases_stays_offline_unless_asked(tmp_path: Path, wandb: types.SimpleNamespace) -> None:
    sinks = open_sinks(RunFolder(tmp_path), LogConfig(wandb="offline"), {"seed": 1})
    sinks.write(64, row(1))
    sinks.close()
    assert (wandb.started["mode"], wandb.started["dir"], wandb.started["config"]) == ("offline", str(tmp_path), {"seed": 1})
    assert wandb.logged == [(64, row(1))] and wandb.finished == 1
    open_sinks(RunFolder(tmp_path), LogConfig(wandb="online"), {})
    assert wandb.started["mode"] == "online"


def test_what_a_resumed_run_logs_again_is_not_dropped_by_weights_and_biases(
    tmp_path: Path, wandb: types.SimpleNamespace
) -> None:
    run, log = RunFolder(tmp_path), LogConfig(wandb="offline")
    for first, last in ((1, 8), (6, 9), (6, 7)):  # killed twice, each time beyond the checkpoint of update 5
        sinks = open_sinks(run, log, {}, after_updates=first - 1, step=64 * (first - 1))
        for update in range(first, last + 1):
            sinks.write(64 * update, row(update))
        sinks.close()
    assert [metrics["updates"] for _, metrics in wandb.logged] == [*range(1, 9), *range(6, 10), 6, 7]
    assert all(metrics["steps"] == 64 * metrics["updates"] for _, metrics in wandb.logged)
    assert ("*", "steps") in wandb.axes, "charts are drawn over our steps"


SINK = """
class Sink:
    def __init__(self, folder, config):
        self.file = open(folder / "own.txt", "a")
        self.seed = config["seed"]

    def write(self, step, metrics):
        if step == 192:
            raise ConnectionError("no answer")
        metrics["loss/kl"] = None
        self.file.write(f"{self.seed} {step}\\n")

    def close(self):
        self.file.write("closed\\n")
        self.file.close()

class Short:
    def __init__(self, folder, config): ...
    def write(self, step): ...
    def close(self): ...

class Open(Short):
    def write(self, step, metrics): ...
    close = None

class Late(Sink):
    def __init__(self, folder, config):
        config["sede"]

def make(folder, config): ...
"""


def test_a_logger_of_ones_own_gets_every_line_until_it_fails(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SINK)
    run = RunFolder(tmp_path)
    sinks = open_sinks(run, LogConfig(sink=f"{file}:Sink"), {"seed": 7})
    for update in (1, 2):
        sinks.write(64 * update, row(update))
    with pytest.warns(RuntimeWarning, match=r"mine.py:Sink failed and is left out .*ConnectionError: no answer\n.*line 9"):
        sinks.write(192, row(3))
    sinks.write(256, row(4))
    sinks.close()
    assert (tmp_path / "own.txt").read_text() == "7 64\n7 128\nclosed\n"
    assert [line["loss/kl"] for line in run.read_metrics()] == [row(update)["loss/kl"] for update in range(1, 5)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Short", r"has write\(self, step\); it must take what def write\(self, step, metrics\) takes"),
        ("Open", r"has no close; a logger has def close\(self\)"),
        ("Late", r"Late\(folder, config\) failed: KeyError: 'sede'\n.*line \d+: config"),
        ("make", "must be a class"),
        ("Snik", "has no 'Snik'. Did you mean 'Sink'"),
    ],
)
def test_a_wrong_logger_is_refused_before_work_starts(tmp_path: Path, name: str, said: str, no_leaks: None) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SINK)
    with pytest.raises(ConfigError, match=said):
        open_sinks(RunFolder(tmp_path), LogConfig(sink=f"{file}:{name}"), {"seed": 7})
    with pytest.raises(ConfigError, match="none.py.: no such file"):
        open_sinks(RunFolder(tmp_path), LogConfig(sink=f"{tmp_path}/none.py:{name}"), {})


def test_a_service_that_does_not_start_is_told_before_work_starts(tmp_path: Path, wandb: types.SimpleNamespace) -> None:
    def init(**arguments: Any) -> None:
        raise RuntimeError("api_key not configured")

    wandb.init = init
    with pytest.raises(ConfigError, match="did not start: api_key not configured. --log.wandb offline needs no account"):
        open_sinks(RunFolder(tmp_path), LogConfig(wandb="online"), {})


@pytest.mark.parametrize(
    ("field", "value"), [("wandb", "on"), ("board", "none"), ("interval", 0.0), ("interval", float("nan"))]
)
def test_impossible_settings_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"log.{field}="):
        LogConfig(**{field: value})


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, fugu.run.sinks, fugu.run.timer, fugu.trainer; print({'torch', 'rich', 'wandb'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
