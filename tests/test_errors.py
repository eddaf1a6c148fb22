"""What code reads of an error are its fields; they survive the way between processes, and the text is made of them."""

from __future__ import annotations

import json
import pickle
import traceback

import gymnasium
import pytest

import fugu
from fugu.cli.apart import Ended, apart
from fugu.errors import (
    ConfigError,
    EnvError,
    EnvTimeout,
    FuguError,
    MissingExtra,
    SpaceError,
    WorkerDied,
    places_in,
    shared_class,
    whole,
)


class Own(AttributeError):
    """Of a module that only this process knows."""


ERRORS = [
    FuguError("a disk is full"),
    ConfigError("steps=0 must be at least 1", fix="give --steps"),
    SpaceError("expected a dict", where="obs/map", fix="Return one").of(agent="red", sub_env=3),
    MissingExtra("video", "video"),
    EnvError("Own: no", worker=2, envs=(4,), seeds=(7,), phase="reset", remote_traceback="here", cause=AttributeError),
    WorkerDied("gone", signal=9, worker=1, envs=(0, 1)),
    EnvTimeout("late", envs=range(3)),
    Ended("it was killed", ["  env.py:3 in step: crash()"], "raise instead"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_class_text_and_fields_when_pickled(error: FuguError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error) and str(back) == str(error)
    assert vars(back) == vars(error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FuguError("x is 3", where="a", fix="Make it 4"), "a: x is 3. Make it 4"),
        (FuguError("x is 3", fix="make it 4"), "x is 3; make it 4"),
        (FuguError("these differ:\n  a\n  b", fix="Make them one"), "these differ:\n  a\n  b\nMake them one"),
        (SpaceError("x is 3", where="a").of(agent="red"), "agent 'red': a: x is 3"),
        (SpaceError("x is 3", fix="make it 4").of(sub_env=2), "sub-env 2: x is 3; make it 4"),
    ],
)
def test_the_text_is_made_of_the_fields(error: FuguError, text: str) -> None:
    assert str(error) == text
    assert text.startswith(error.complaint) and text.endswith(error.fix)


def test_the_cause_is_a_class_that_every_process_knows() -> None:
    assert shared_class(Own("x")) is AttributeError
    assert shared_class(SpaceError("x")) is SpaceError
    assert shared_class(EnvTimeout("x")) is EnvTimeout


class Lacking(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        raise Own("no")


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_what_an_environment_raised_is_known_by_its_class(backend: str) -> None:
    settings = {} if backend == "serial" else {"isolate": True, "num_workers": 1}
    with fugu.vector.make(Lacking, 1, backend=backend, **settings) as vec:
        vec.reset()
        with pytest.raises(EnvError) as caught:
            vec.step([0])
    assert caught.value.cause is AttributeError and caught.value.caused_by(AttributeError)
    assert not caught.value.caused_by(KeyError)


def test_the_text_shows_the_users_lines_and_a_field_keeps_the_rest() -> None:
    def parse() -> None:
        json.loads("{")

    try:
        parse()
    except ValueError as raised:
        text = "".join(traceback.format_exception(raised))
    error = EnvError("JSONDecodeError: no", envs=(4,), seeds=(7,), remote_traceback=text)
    lines = str(error).splitlines()
    assert lines[0] == "JSONDecodeError: no" and lines[2].endswith('json.loads("{")') and len(lines) == 5
    assert all(line.startswith(f"  {__file__}, line ") for line in lines[1:3]) and "json/decoder.py" in error.remote_traceback
    error.add("  saved")
    assert str(pickle.loads(pickle.dumps(error))).endswith("\n  seed 7\n  saved") and "json/decoder.py" in whole(error)


def test_a_crash_in_a_library_shows_where_it_left_ours() -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n"
        '  File "/home/me/other.py", line 1 in wait\n\nCurrent thread 0x2 (most recent call first):\n'
        f'  File "/venv/site-packages/sim/core.py", line 7 in crash\n  File "{fugu.__file__}", line 1 in step\n'
        '  File "<string>", line 5 in <module>\n'
    )
    assert places_in(text) == ["\n  /venv/site-packages/sim/core.py, line 7"]
    assert places_in(text.replace(fugu.__file__, "/home/me/env.py")) == ["\n  /home/me/env.py, line 1"]


def refuse() -> None:
    raise SpaceError("x is 3", where="a", fix="make it 4").of(agent="red")


def test_an_error_of_a_process_of_its_own_is_the_error_itself() -> None:
    with pytest.raises(SpaceError) as caught:
        apart(refuse)
    assert (caught.value.where, caught.value.fix, caught.value.agent) == ("a", "make it 4", "red")
