"""The presets for a GPU learn there, with rounded products as well as with exact ones."""

from __future__ import annotations

import pytest

import fugu

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(300)
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_cartpole_is_solved(precision, tmp_path):
    run = fugu.train("cartpole", device="cuda", precision=precision, runs=tmp_path, target=475, **{"log.board": "off"})
    assert run.evaluate(100).mean >= 475


@pytest.mark.timeout(300)
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_breakout_is_cleared(precision, tmp_path):
    run = fugu.train("breakout", device="cuda", precision=precision, runs=tmp_path, **{"log.board": "off"})
    assert run.evaluate(100).mean >= 90


@pytest.mark.timeout(300)
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_memory_is_learned(precision, tmp_path):
    settings = {"num_envs": 4096, "minibatch": None, "epochs": 2, "steps": 20_000_000, "learning_rate": 3e-3}
    run = fugu.train("memory", device="cuda", precision=precision, runs=tmp_path, **settings, **{"log.board": "off"})
    assert run.evaluate(1000).mean >= 0.95
