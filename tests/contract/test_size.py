"""How much one has to read: files on the way of one observation, and lines in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fugu
from fugu.config import override
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.interrupt import Interrupt

SOURCE = Path(fugu.__file__ or "").parent
NATIVE = Path(__file__).parents[2] / "native"


@pytest.mark.parametrize(
    ("env", "settings", "most"),
    [("cartpole", {}, 19), ("CartPole-v1", {"vector.backend": "process", "num_workers": 2}, 24)],
    ids=["native", "gymnasium"],
)
def test_an_update_runs_through_few_files(env, settings, most):
    trainer = make_trainer(override(preset(env), settings))
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(SOURCE):
            files.add(str(file.relative_to(SOURCE)))

    trainer.start()
    try:
        with Interrupt() as interrupt:
            trainer.update(interrupt)
            sys.setprofile(note)
            try:
                trainer.update(interrupt)
            finally:
                sys.setprofile(None)
    finally:
        trainer.close()
    assert len(files) <= most, sorted(files)


def test_no_source_file_is_longer_than_400_lines():
    files = [*SOURCE.rglob("*.py"), *NATIVE.rglob("*.h"), *NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.c")]
    assert len(files) > 200
    assert not [f"{file.name}: {n}" for file in files if (n := len(file.read_text().splitlines())) > 400]
