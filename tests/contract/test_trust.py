"""Somebody else's run in an environment that comes with fugu or Gymnasium is used without anything of it being executed."""

from __future__ import annotations

import builtins
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import cattrs
import pytest

import fugu
from fugu.cli.main import main
from fugu.emulation import factory
from fugu.run.overview import overviews

TINY = {"steps": 128, "num_envs": 4, "horizon": 8, "minibatch": 32, "threads": 1, "log.board": "off"}
LIBRARIES = (
    "<frozen importlib",
    "<string>",
    *sysconfig.get_paths().values(),
    *(str(Path(each.__file__).parents[1]) for each in (cattrs, fugu)),
)


class Foreign:
    """Refuses to import what neither Python nor an installed package has."""

    def find_spec(self, name: str, path: Any = None, *_: object) -> None:
        found = PathFinder.find_spec(name, path)
        assert found is None or found.origin is None or found.origin.startswith(LIBRARIES), f"{found.origin} was imported"


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("something was executed")


def by_libraries(real: Any) -> Any:
    """Return ``exec`` or ``eval`` for the libraries that make classes and look at annotations with it."""

    def call(*given: Any) -> Any:
        caller = sys._getframe(1)
        assert caller.f_code.co_filename.startswith(LIBRARIES), f"{caller.f_code.co_filename} executes something"
        if len(given) == 1:
            given = (*given, caller.f_globals, caller.f_locals)
        return real(*given)

    return call


@pytest.mark.parametrize("env", ["cartpole", "CartPole-v1"])
def test_a_foreign_run_executes_nothing(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = fugu.train(env, runs=tmp_path / "mine", **TINY, backend="auto" if env == "cartpole" else "serial")
    mine.evaluate(1)
    path = shutil.copytree(mine.path, tmp_path / "runs" / "theirs")
    (path / "code" / "env").mkdir(parents=True)
    (path / "code" / "env" / "gymnasium.py").write_text("raise SystemExit")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(path)
    monkeypatch.setattr(sys, "meta_path", [Foreign(), *sys.meta_path])
    for module, name in ((pickle, "loads"), (os, "system"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, refuse)
    for name in ("exec", "eval"):
        monkeypatch.setattr(builtins, name, by_libraries(getattr(builtins, name)))
    for name in ("load_file", "load_module", "load_named"):
        monkeypatch.setattr(factory, name, refuse)
    theirs = fugu.Run(path)
    assert theirs.evaluate(2).episodes == 2
    assert main(["eval", str(path), "--episodes", "2"]) == 0
    assert theirs.resume(steps=256).metrics()[-1]["steps"] >= 256
    assert overviews(tmp_path / "runs")[0].state == "done"
    assert not (path / "seal").exists() and not (tmp_path / "state").exists()
