"""Names for what is passed as an object: by which another process finds it, or that say it cannot."""

from __future__ import annotations

import functools
import sys
import threading

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from fugu.emulation.factory import load_file, load_named
from fugu.emulation.place import Name, from_anywhere, meaning
from fugu.emulation.session import importable, label, named


class Here(gym.Env):
    pass


def test_what_can_be_imported_again_is_named_as_on_the_command_line(tmp_path, monkeypatch):
    assert importable(CartPoleEnv) == "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    (tmp_path / "my_module_of_envs.py").write_text("class Mine: pass\ndef make(): return Mine()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_module_of_envs as module

    try:
        assert importable(module.Mine) == f"{tmp_path}/my_module_of_envs.py:Mine"
        assert importable(module.make) == f"{tmp_path}/my_module_of_envs.py:make"
        loaded = load_file(str(tmp_path / "my_module_of_envs.py")).Mine
        assert importable(loaded) == f"{tmp_path}/my_module_of_envs.py:Mine"
        assert load_named(str(importable(loaded))) is loaded
    finally:
        del sys.modules["my_module_of_envs"]


def test_what_exists_only_here_is_named_so_that_one_recognises_it(monkeypatch):
    class Local:
        pass

    monkeypatch.setattr(Here, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Here", Here, raising=False)
    for value, name in (
        (Local, "Local"),
        (Here, "Here"),
        (lambda: Local(), "lambda"),
        (functools.partial(CartPoleEnv, render_mode=None), "CartPoleEnv"),
        ([Local, Local, "cartpole"], "Local-and-2-more"),
    ):
        assert importable(value) is None and label(value) == name
        assert named(value).startswith(f"session:{name}") and meaning(named(value)) is value


def test_a_class_that_is_defined_anew_gets_a_name_of_its_own():
    first, second = (type("Redefined", (), {"__module__": "__main__"}) for _ in range(2))
    assert [named(first), named(second), named(first)] == ["session:Redefined", "session:Redefined-2", "session:Redefined"]


@pytest.mark.parametrize("name", ["cartpole", "my.py:Env"])
def test_text_is_a_name_already(name):
    assert named(name) is name and meaning(name) is name


def test_a_name_keeps_its_object_wherever_it_goes():
    import copy
    import pickle

    name = Name("session:Here", Here)
    for again in (from_anywhere(name), copy.deepcopy({"env": name})["env"], pickle.loads(pickle.dumps(name))):
        assert again == "session:Here" and meaning(again) is Here
    held = functools.partial(Here, threading.Lock())  # which cannot be copied
    assert meaning(copy.deepcopy(Name("session:Here", held))) is held
