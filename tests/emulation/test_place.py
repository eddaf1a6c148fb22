"""Names that stand for files mean the same from every folder."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fugu.emulation.place import cached_by_meaning, from_anywhere, from_here, title


@pytest.mark.parametrize("name", ["my.py:Env", "sub/my.py:Env", "my_env.h", "../up/my_env.hpp"])
def test_a_file_is_kept_by_its_whole_path_and_shown_as_typed(name, tmp_path, monkeypatch):
    here = tmp_path / "a folder" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    whole = from_anywhere(name)
    file, rest = name.partition(":")[::2]
    assert whole == str((here / file).resolve()) + (f":{rest}" if rest else "")
    assert from_anywhere(whole) == whole
    assert from_here(whole) == name


@pytest.mark.parametrize(
    "name", ["cartpole", "CartPole-v1", "ALE/Pong-v5", "package.module:Class", "minigrid:Id-v0", "default"]
)
def test_other_names_stay_as_they_are(name):
    assert from_anywhere(name) == from_here(name) == name


def test_an_environment_is_called_by_its_game_where_our_function_makes_many():
    assert title("fugu.envs.atari:make", {"game": "ALE/Pong-v5"}) == "ALE/Pong-v5"
    assert title("my.package:make", {"game": "chess"}) == "my.package:make"
    assert title("cartpole", {}) == "cartpole"


def test_threads_that_ask_at_once_are_given_the_same():
    both = threading.Barrier(2)

    @cached_by_meaning
    def made(name: str) -> object:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.5)  # until the other one is here as well, which must not be
        return object()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(made, ["cartpole", "cartpole"])
    assert first is second
