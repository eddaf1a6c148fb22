"""Environments whose packages are not installed: one line that says what to type, wherever they are asked for."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

import fugu
from fugu.emulation.factory import factories
from fugu.errors import ConfigError, NotInstalled


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a package look as if it was not installed."""

    def hide(package: str) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else find(name, *more))
        monkeypatch.setattr(sys, "meta_path", [_Hides(package), *sys.meta_path])
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)

    return hide


class _Hides:
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, *_: Any) -> None:
        if name == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("env", "package", "install"),
    [
        ("ALE/NoSuchGame-v5", "ale_py", r"fugu-rl\[atari\]"),
        ("MiniGrid-NoSuchRoom-v0", "minigrid", r"fugu-rl\[minigrid\]"),
        ("BabyAI-NoSuchRoom-v0", "minigrid", r"fugu-rl\[minigrid\]"),
        ("NetHackNoSuchTask-v0", "nle", "nle"),
        ("MiniHack-NoSuchRoom-v0", "minihack", "minihack"),
        ("mpe2.simple_spread_v3:parallel_env", "mpe2", "mpe2"),
    ],
)
def test_an_environment_of_a_package_that_is_missing_says_what_to_install(
    without: Callable[[str], None], env: str, package: str, install: str
) -> None:
    without(package)
    with pytest.raises(NotInstalled, match=rf'^{env} needs a package that is not installed: pip install "{install}"$'):
        factories(env, 1)


def test_an_id_that_nobody_registers_is_not_blamed_on_a_package() -> None:
    with pytest.raises(ConfigError, match=r"no environment 'fugu/CartPool-v0' is registered. Did you mean 'fugu/CartPole-v0'"):
        factories("fugu/CartPool-v0", 1)


def _needs_more(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    raise gymnasium.error.DependencyNotInstalled('Box2D is not installed, run `pip install "gymnasium[box2d]"`')


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_what_gymnasium_says_of_a_missing_dependency_comes_without_a_traceback(backend: str) -> None:
    with pytest.raises(NotInstalled, match=r'^Box2D is not installed, run `pip install "gymnasium\[box2d\]"`$'):
        fugu.vector.make(_needs_more, 2, backend=backend, num_workers=2 if backend == "process" else None)


def test_a_vec_env_is_answered_with_what_to_give_instead() -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv

    with fugu.vector.make("CartPole-v1", 2, backend="serial") as ours:
        theirs = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
        for env in (ours, theirs, lambda: ours, lambda: theirs):
            with pytest.raises(
                ConfigError, match="VecEnv, which is many .* itself. Give the environment that is in it, .* num_envs=8"
            ):
                fugu.vector.make(env, 2, backend="serial")


@pytest.mark.parametrize("env", ["pettingzoo.butterfly.pistonball_v6:parallel_env", "pettingzoo.butterfly.pistonball_v6:env"])
def test_a_game_of_pettingzoo_that_needs_more_says_what_to_install(without: Callable[[str], None], env: str) -> None:
    without("pymunk")
    for name in [name for name in sys.modules if name.startswith("pettingzoo.butterfly.pistonball")]:
        del sys.modules[name]
    with pytest.raises(
        NotInstalled, match=rf'^{env} needs a package that is not installed: pip install "pettingzoo\[butterfly\]"$'
    ):
        factories(env, 1)
