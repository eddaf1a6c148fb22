"""An environment nobody has tuned for is built to be looked at: within its time, and what it raises names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fugu
from fugu.cli.main import main
from fugu.errors import EnvError, EnvTimeout
from fugu.presets import preset

ENV = "tests.faults.faulty:Faulty"
HANGS = {"fault": "sleep", "phase": "make"}


@pytest.mark.parametrize(
    "settings", [{"start_timeout": 0.3}, {"vector": {"start_timeout": 0.3}}, {"vector.start_timeout": 0.3}]
)
def test_a_constructor_that_hangs_ends_with_the_start_timeout(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(EnvTimeout, match=r"no answer within 0.3 s \(start_timeout\)"):
        fugu.train(ENV, env_kwargs=HANGS, runs=tmp_path, **settings)


@pytest.mark.parametrize("flag", ["--start-timeout", "--vector.start-timeout"])
def test_so_it_does_on_the_command_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", ENV, "--env.fault", "sleep", "--env.phase", "make", flag, "0.3"]) == 1
    assert "no answer within 0.3 s (start_timeout)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kwargs", "says"), [({"size": 3}, "argument 'size'"), ({**HANGS, "fault": "raise"}, "the env broke in make")]
)
def test_a_constructor_that_raises_is_an_error_of_the_environment(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(EnvError, match=says) as raised:
        preset(ENV, kwargs)
    assert raised.value.phase == "make"
