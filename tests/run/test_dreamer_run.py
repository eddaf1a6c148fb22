"""A run of dreamer from its start to a policy that is loaded and shown."""

from __future__ import annotations

import numpy as np
import pytest

import fugu


@pytest.mark.slow
def test_a_run_is_trained_resumed_loaded_and_shown(tmp_path):
    settings = {"dreamer.size": "tiny", "steps": 600, "eval.every": None, "target": None, "board": "off", "replay.ratio": 32}
    run = fugu.train("CartPole-v1", algorithm="dreamer", runs=tmp_path, **settings)
    assert run.resume(steps=700).metrics()[-1]["steps"] >= 700
    assert 5 < run.evaluate(5).mean < 501
    policy, obs = fugu.load(run.path), np.array([0.01, 0.0, 0.02, 0.0], np.float32)
    action, state = policy.predict(obs)
    assert policy.predict(obs)[0] == action and {array.shape[0] for array in state} == {1}
    policy(obs)
    remembered = policy.distribution(obs).probabilities
    policy.reset()
    assert not np.array_equal(policy.distribution(obs).probabilities, remembered)
    assert np.isfinite(policy.value(obs))
    assert run.video(tmp_path / "dream.gif", imagine=True, max_frames=20).stat().st_size > 1000
