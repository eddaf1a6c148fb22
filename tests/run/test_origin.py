"""A run says where it came from, and carries copies of the files it was made of; nothing of that can end a training."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

import fugu
from fugu.run import code, origin
from fugu.run.commit import Commit
from fugu.run.store import RunFolder
from tests.timing import in_time

TINY = {"steps": 64, "num_envs": 4, "horizon": 8, "minibatch": 32, "threads": 1, "log.board": "off"}


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    (tmp_path / "file.txt").write_text("before\n")
    git(tmp_path, "add", "file.txt")
    git(tmp_path, "commit", "-q", "-m", "first")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_says_where_it_came_from(repository):
    (repository / "file.txt").write_text("after\n")
    run = fugu.train("cartpole", **TINY)
    found = json.loads(run.folder.origin.read_text())
    assert found["git"] == {"commit": git(repository, "rev-parse", "HEAD").strip(), "changed": True, "diff_kept": True}
    diff = (run.folder.at / "origin.diff").read_text()
    assert "-before" in diff and "+after" in diff
    assert found["versions"]["fugu"] == fugu.__version__ and set(found["versions"]) == {
        "fugu",
        "python",
        "torch",
        "numpy",
        "gymnasium",
    }
    assert found["machine"]["cores"] >= 1 and found["command"] and found["folder"] == str(repository)
    assert found["spaces"] == {"observations": "Box float32 [4]", "actions": "Discrete int64 2"}


def test_git_is_not_asked_outside_of_a_work_tree_and_never_waited_for_long(tmp_path, repository, monkeypatch):
    with Commit() as commit:
        assert commit.found(tmp_path / "none")["changed"] is False and not (tmp_path / "none").exists()
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=":")
    monkeypatch.setattr("fugu.run.commit.PATIENCE_S", 0.1)
    began = time.monotonic()
    with Commit() as commit:
        assert commit.found(tmp_path / "none") is None
    in_time(time.monotonic() - began, 5)
    (tmp_path / "outside").mkdir()
    monkeypatch.setattr("pathlib.Path.exists", lambda self: False)
    with Commit() as commit:
        assert commit.found(tmp_path / "none") is None


@pytest.mark.parametrize("part", ["_versions", "_machine", "_copied", "stamp", "files.write"])
def test_no_failure_here_ends_a_training(tmp_path, monkeypatch, part):
    def fails(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(f"fugu.run.origin.{part}", fails)
    folder = RunFolder(tmp_path)
    folder.config.write_text('env = "cartpole"\n# end\n')
    origin.note_origin(folder, fugu.presets.preset("cartpole"))
    assert folder.origin.exists() == (part in ("_copied", "stamp"))  # the rest does without them


def test_what_a_file_imports_from_beside_it_is_copied_and_nothing_else(tmp_path):
    (tmp_path / "env.py").write_text("import numpy as np, level; import os\nfrom parts.one import one\nimport missing\n")
    (tmp_path / "level.py").write_text("import env\nif True:\n    import deeper  # unrelated\nfrom . import unrelated\n")
    (tmp_path / "deeper.py").write_text("not Python at all (")
    (tmp_path / "unrelated.py").write_text("")
    (tmp_path / "parts").mkdir()
    for name in ("__init__.py", "one.py"):
        (tmp_path / "parts" / name).write_text("")
    files = code.gathered(f"{tmp_path}/env.py:Env")
    assert sorted(files) == ["deeper.py", "env.py", "level.py", "parts/__init__.py", "parts/one.py"]
    code.keep(tmp_path / "code", "env", files)
    assert code.of_role(code.read(tmp_path / "code"), "env") == files
    code.keep(tmp_path / "code", "env", {"env.py": b""})
    assert code.read(tmp_path / "code") == {"env/env.py": b""}


def test_a_header_is_copied_with_what_it_includes(tmp_path):
    (tmp_path / "mine.h").write_text('#include "other.h"\n#include <vector>\n')
    (tmp_path / "other.h").write_text("")
    assert sorted(code.gathered(f"{tmp_path}/mine.h")) == ["mine.h", "other.h"]


def test_more_than_a_run_should_carry_is_left_out_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "MOST_BYTES", 100)
    (tmp_path / "env.py").write_text("import large\n")
    (tmp_path / "large.py").write_text("#" * 100)
    folder = RunFolder(tmp_path)
    folder.config.write_text(f'env = "{tmp_path}/env.py:Env"\n# end\n')
    origin.note_origin(folder, fugu.presets.preset("cartpole"))
    assert "more than" in json.loads(folder.origin.read_text())["code"]["env"]["not_copied"]
    assert not (folder.code / "env").exists()
