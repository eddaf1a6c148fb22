"""A trained run to work on, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fugu


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two short CartPole runs. Not to be changed: see ``runs``."""
    root = tmp_path_factory.mktemp("trained") / "runs"
    for seed in (0, 1):
        fugu.train("cartpole", runs=root, seed=seed, steps=20_000, num_envs=64, minibatch=1024, threads=1, board="off")
    return root


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))
