"""What a worker sends: plain data that nothing is executed for, and objects that are tried where they come from."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest

import fugu
from fugu.errors import EnvError, WorkerDied
from fugu.vector.mail import Mailbox, pair
from fugu.vector.parcel import Sealed, open_infos, pack, pack_infos, pack_results, unpack
from tests.faults.faulty import Faulty


class Bomb:
    """Does ``what`` when it is unpickled."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __reduce__(self):
        return _go_off, (self.what, os.getppid())


def _go_off(what: str, parent: int) -> str:
    if what == "raise":
        raise ValueError("not to be read")
    if what == "exit":
        sys.exit(3)
    if what == "end":
        os._exit(3)
    if what == "hang":
        time.sleep(1000)
    if what == "raise there" and os.getpid() == parent:
        raise GeneratorExit("not here")
    return what


class Talkative(Faulty):
    """Says something on every step, and when asked."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"fine": 7, "odd": self.odd()}

    def odd(self):
        if self.what == "deep":
            deep: list = []
            for _ in range(100_000):
                deep = [deep]
            return deep
        return {"at": [Bomb(self.what)]}


def make(what, **settings):
    return fugu.vector.make(partial(Talkative, what), 2, backend="process", num_workers=2, seed=4, **settings)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("what", ["raise", "exit", "deep", "raise there"])
def test_an_info_that_cannot_be_read_is_named(what):
    with make(what) as vec:
        vec.reset()
        for _ in range(2):
            infos = vec.step(np.zeros(2, np.int64))[4]
            assert infos[1] == {"fine": 7, "unpicklable": ["odd"]}


@pytest.mark.usefixtures("no_leaks")
def test_an_object_that_ends_whoever_reads_it_ends_its_worker():
    with make("end") as vec, pytest.raises(WorkerDied, match="exit code 3") as caught:
        vec.reset()
        vec.step(np.zeros(2, np.int64))
    assert caught.value.envs == (1,) and len(caught.value.seeds) == 1
    with make("hang", step_timeout=0.4) as vec, pytest.raises(fugu.errors.EnvTimeout) as caught:
        vec.reset()
        vec.step(np.zeros(2, np.int64))
    assert caught.value.envs == (1,)


@pytest.mark.usefixtures("no_leaks")
def test_a_result_that_cannot_be_read_here_is_the_envs_error():
    with make("raise there") as vec, pytest.raises(EnvError, match="GeneratorExit: not here") as caught:
        vec.reset()
        vec.call("odd")
    assert (caught.value.envs, caught.value.phase, len(caught.value.seeds)) == ((1,), "call", 1)
    with make("raise") as vec:
        assert "Bomb" in vec.call("odd", envs=[1])[0]  # as text: it cannot be sent


NO_INFOS = (
    b"",
    b"x",
    pack(5),
    pack({0: {}}),
    pack({1: 5}),
    pack({"remote_traceback": 1, "worker": 1}),
    pickle.dumps({1: os.system}),
)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("content", NO_INFOS)
def test_what_no_worker_of_ours_says_is_the_envs_error(content):
    """Something in an environment may write to the socket of its worker, or into its memory."""
    with make("fine") as vec:
        vec.reset()
        vec._runner._workers[0].mailbox.receive = lambda *_: content
        with pytest.raises(EnvError, match="cannot be read here") as caught:
            vec.step(np.zeros(2, np.int64))
    assert (caught.value.envs, caught.value.phase, len(caught.value.seeds)) == ((1,), "step", 1)


def test_what_is_shorter_than_the_head_of_a_message_is_passed_over():
    ours, theirs = map(Mailbox, pair())
    with contextlib.closing(ours), contextlib.closing(theirs):
        theirs._socket.send(b"x")
        theirs.send(1, b"said")
        assert ours.receive(1, 1.0) == b"said"


@pytest.mark.usefixtures("no_leaks")
def test_options_that_cannot_be_read_there_are_the_envs_error():
    with make("fine") as vec, pytest.raises(EnvError, match="EOFError"):
        vec.reset(options={"odd": Ends()})


class Ends:
    def __reduce__(self):
        return _end_of_file, ()


def _end_of_file():
    raise EOFError("as if the parent were gone")


PLAIN = [
    {0: {"a": 1, "b": [1.5, True, None, "x", b"y", 2**200, 1j], "c": {"d": (1, {2}, frozenset([3]))}}},
    {0: {"array": np.arange(6, dtype=np.int16).reshape(2, 3), "turned": np.zeros((2, 3)).T, "none": np.zeros((0, 2))}},
    {0: {"number": np.float32(1.5), "flag": np.bool_(True), "when": np.datetime64("2020-01-01"), "dtype": np.dtype("f4")}},
    {0: {"record": np.zeros(2, [("a", "i4"), ("b", "f8", (2,))]), "text": np.array(["a", "bc"]), "big": np.array([1], ">i4")}},
    {0: {"objects": np.array([1, "a", None], object), "range": range(3), "slice": slice(1, 2)}},
    {0: collections.OrderedDict(a=collections.deque([1, 2]), b=collections.Counter("aab"))},
]


@pytest.mark.parametrize("value", PLAIN)
def test_plain_data_arrives_as_it_was_without_any_foreign_name(value, monkeypatch):
    content = pack_infos(value)
    monkeypatch.setattr(pickle, "loads", None)  # no object is opened
    got = open_infos(unpack(content), slice(0, 1))
    np.testing.assert_equal(got, value)
    for name, item in value[0].items():
        assert type(got[0][name]) is type(item)
        assert not isinstance(item, np.ndarray) or (got[0][name].dtype == item.dtype and got[0][name].flags.writeable)


@pytest.mark.parametrize(
    "value", [Bomb("raise"), os.system, Faulty, ValueError("x"), {1: [threading.Lock]}, np.random.default_rng(1)]
)
def test_anything_else_is_not_plain(value):
    with pytest.raises(Exception):  # noqa: B017
        pack(value)


@pytest.mark.parametrize("callable", [os.system, eval, exec, getattr, __import__, np.load, print])
def test_what_is_read_as_plain_data_can_call_nothing(callable):
    class Calls:
        def __reduce__(self):
            return callable, ("1",)

    with pytest.raises(pickle.UnpicklingError, match="is no plain data"):
        unpack(pickle.dumps([1, Calls()]))


def test_objects_that_can_be_sent_are_sent():
    got = unpack(pack_results([ValueError("x"), Sealed, threading.Lock(), 5]))
    assert isinstance(got[0], Sealed) and str(got[0].open()) == "x" and got[1] is Sealed and got[3] == 5
    assert "lock" in got[2]


@pytest.mark.usefixtures("no_leaks")
def test_a_large_info_is_not_late_because_it_was_asked_for_late():
    with fugu.vector.make(partial(Faulty, "big_info", at=1), 2, backend="process", num_workers=2, step_timeout=0.5) as vec:
        vec.reset()
        vec.send(np.zeros(2, np.int64))
        time.sleep(0.7)
        assert len(vec.recv().infos[1]["blob"]) == 5_000_000
