"""``fugu cluster check``, with Ray in this process."""

from __future__ import annotations

import json

from tests.vector.ray_here import ray_here  # noqa: F401

from fugu.cli import cluster
from fugu.cli.main import main


def test_every_machine_has_a_line(ray_here, capsys, monkeypatch):  # noqa: F811
    ray_here.machines = 2
    monkeypatch.setattr(cluster, "sandbox_level", lambda: 2)
    assert main(["cluster", "check", "--calls", "3", "--megabytes", "1"]) == 0
    text = capsys.readouterr().out
    assert "10.0.0.1" in text and "10.0.0.2" in text and text.count("level 2") == 2 and "started for this check" in text


def test_other_versions_and_silent_machines_are_told_and_fail(ray_here, capsys, monkeypatch):  # noqa: F811
    ray_here.machines = 2
    monkeypatch.setattr(cluster, "sandbox_level", lambda: None)
    look = cluster.look

    def odd(used, place, options):
        if place.ident == "id1":
            raise ray_here.exceptions.GetTimeoutError("Get timed out")
        found = look(used, place, options)
        return {**found, "versions": {**found["versions"], "torch": "1.0"}}

    monkeypatch.setattr(cluster, "look", odd)
    assert main(["cluster", "check", "--calls", "3", "--megabytes", "1", "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)["machines"]
    assert first["problem"].startswith("other versions: torch 1.0 (here ") and "GetTimeoutError" in second["problem"]
