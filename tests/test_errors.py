"""What code reads of an error are its fields; they survive the way between processes, and the text is made of them."""

from __future__ import annotations

import pickle

import gymnasium
import pytest

import fugu
from fugu.cli.apart import Ended, apart
from fugu.errors import ConfigError, EnvError, EnvTimeout, FuguError, MissingExtra, SpaceError, WorkerDied, shared_class


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


def refuse() -> None:
    raise SpaceError("x is 3", where="a", fix="make it 4").of(agent="red")


def test_an_error_of_a_process_of_its_own_is_the_error_itself() -> None:
    with pytest.raises(SpaceError) as caught:
        apart(refuse)
    assert (caught.value.where, caught.value.fix, caught.value.agent) == ("a", "make it 4", "red")
