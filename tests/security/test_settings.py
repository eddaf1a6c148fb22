"""Settings of an environment in a run that somebody else made: files that are none, and numbers that are absurd."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fugu.coding.env import Coding
from fugu.coding.sandbox import SandboxConfig
from fugu.coding.task import TaskError, read_lines
from fugu.errors import ConfigError, FuguError
from tests.timing import in_time


@pytest.mark.timeout(20)
@pytest.mark.parametrize("setting", ["tasks", "tokenizer", "memory"])
@pytest.mark.parametrize("kind", ["pipe", "device", "endless", "deep"])
def test_files_that_settings_name_are_not_waited_for(tmp_path: Path, setting: str, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "deep":
        path.write_text("[" * 100_000)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 43)  # of zeros, which take no room
    with pytest.raises(FuguError, match="file"):
        Coding(**{setting: str(path)})


def test_a_line_that_no_task_can_fill_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fugu.coding.task.LONGEST", 100)
    (tmp_path / "tasks").write_text(f"{{}}\n{'x' * 100}\n")
    with pytest.raises(TaskError, match="line 2: it is longer"):
        list(read_lines(tmp_path / "tasks"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("setting", ["workers", "turns", "vocabulary", "prompt_tokens", "answer_tokens"])
@pytest.mark.parametrize("value", [10**12, 0, "x", 1.5])
def test_absurd_numbers_in_settings_are_one_line_at_once(setting: str, value: object) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=f"{setting}="):
        Coding(**{setting: value})
    in_time(time.monotonic() - began, 2)


def test_no_sandbox_starts_more_processes_than_a_machine_can_have() -> None:
    with pytest.raises(ConfigError, match="workers=1025 must be"):
        SandboxConfig(workers=1025)
