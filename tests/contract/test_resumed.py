"""A run that is killed and resumed equals one that is not: of every algorithm in many settings and on every backend."""

from __future__ import annotations

import pytest
import torch

from fugu.trainer import checkpoint
from tests.algorithm import test_grpo, test_mappo, test_self_play
from tests.contract.test_algorithms import train
from tests.trainer import test_loop

MODULES = {"loop": test_loop, "mappo": test_mappo, "grpo": test_grpo, "self-play": test_self_play}
RUNS = {f"{name}: {case}": config for name, module in MODULES.items() for case, config in module.RESUMED.items()}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_a_run_that_is_killed_and_resumed_equals_one_that_is_not(run, tmp_path):
    config = RUNS[run]
    whole, weights = train(config, tmp_path / "whole")
    assert len(whole) >= 8
    killed = max(5, 2 * len(whole) // 3)
    cut, _ = train(config, tmp_path / "cut", updates=killed)
    saved = checkpoint.find(tmp_path / "cut")
    done = checkpoint.load(saved).state["updates"]  # later where environments that cannot be saved had to end an episode first
    again, same_weights = train(config, tmp_path / "cut", resume=saved)
    assert cut == whole[:killed] and 0 < done < killed and again == whole[done:]
    assert weights.keys() == same_weights.keys() and all(torch.equal(weights[name], same_weights[name]) for name in weights)
