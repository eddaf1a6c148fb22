"""``fugu sandbox``, and what ``fugu doctor`` says of it."""

from __future__ import annotations

import json

import pytest

from fugu.cli.doctor import _sandbox
from fugu.cli.main import main
from fugu.coding.sandbox import probe, smoke
from fugu.coding.sandbox.config import FEATURES
from fugu.coding.sandbox.protections import PROTECTIONS

PLAIN = ["sandbox", "--backend", "subprocess", "--seconds", "0"]


def report(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["sandbox", "--seconds", "0.1", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_default_sandbox_contains_every_attempt(capsys: pytest.CaptureFixture[str], no_leaks: None) -> None:
    if probe.examine().level < 3:
        pytest.skip(f"level {probe.examine().level} only")
    told = report(capsys, "--workers", "1")
    assert (told["backend"], told["isolation"]) == ("fork", {"level": 3, "missing": list(probe.examine().missing)})
    assert len(told["attempts"]) == 20
    assert [attempt for attempt in told["attempts"] if not attempt["contained"]] == []
    assert told["executions_per_s"] > 5


def test_what_plain_processes_do_not_give_is_said(capsys: pytest.CaptureFixture[str], no_leaks: None) -> None:
    told = report(capsys, "--backend", "subprocess", "--workers", "2")
    assert told["isolation"]["level"] == 0
    states = {attempt["what"]: attempt["contained"] for attempt in told["attempts"]}
    assert states["compute for ever"] is states["find an environment variable"] is states["use an open descriptor"] is True
    assert states["read a file of this machine"] is None
    assert "not offered" in next(each["found"] for each in told["attempts"] if each["what"] == "connect to a port")


def test_the_attempts_escape_where_nothing_stops_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would prove nothing: a backend without protection that claims to have them is found out."""
    monkeypatch.setattr(smoke, "gaps", lambda backend: {})
    keep = (
        "read a file of this machine",
        "write into a folder of this machine",
        "connect to a port",
        "make a socket",
        "start a process",
    )
    keep += ("run another program", "signal this process", "make many files")
    monkeypatch.setattr(smoke, "ATTEMPTS", tuple(each for each in smoke.ATTEMPTS if each.what in keep))
    assert main([*PLAIN, "--json"]) == 1
    attempts = json.loads(capsys.readouterr().out)["attempts"]
    assert len(attempts) == len(keep)
    assert [each["what"] for each in attempts if each["contained"]] == []


def test_the_table_names_every_protection(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PLAIN) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "level 0 of 3, without namespaces" in shown
    for meaning in PROTECTIONS.values():
        assert meaning.split(",")[0] in shown


def test_a_level_that_is_not_reached_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAIN, "--min-level", "1"]) == 1
    assert "level 0 here, not at 1" in " ".join(capsys.readouterr().err.split())
    assert main(["sandbox", "--seconds", "-1"]) == 2


@pytest.mark.parametrize(("missing", "status"), [((), "ok"), (("landlock",), "ok"), (tuple(FEATURES), "warning")])
def test_doctor_says_how_to_get_what_is_missing(missing: tuple[str, ...], status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "examine", lambda: probe.Report(dict.fromkeys(missing, "not here")))
    (item,) = _sandbox()
    assert (item.name, item.status) == ("sandbox", status)
    assert all(name in item.found and f"{name}: " in item.fix for name in missing)
