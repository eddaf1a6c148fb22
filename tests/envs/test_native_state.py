"""A state of native worlds that was saved is what they go on from: every one that play leads to, whatever the settings."""

import numpy as np
import pytest

import fugu
from fugu.emulation.native import names
from fugu.errors import ConfigError
from tests.envs.native_state import misfit, play, random_settings, worlds


def accepted_throughout(name: str, rounds: int, steps: int) -> None:
    """Play with the default settings and with others, and put other worlds into the state after each step."""
    random = np.random.default_rng(0)
    for round in range(rounds):
        settings = {} if round == 0 else random_settings(name, random)
        with worlds(name, 70, round, settings) as vec, worlds(name, 70, 99, settings) as other:
            for t, _ in enumerate(play(vec, steps, round)):
                state = vec._runner.state
                assert other._runner._worlds.restore(state) == -1, f"{settings} at step {t}"
                assert other._runner.state == state


@pytest.mark.parametrize("name", names())
def test_every_state_that_play_leads_to_is_accepted(name):
    accepted_throughout(name, 6, 60)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_state_that_long_play_leads_to_is_accepted(name):
    accepted_throughout(name, 12, 500)


@pytest.mark.parametrize("name", names())
def test_a_snapshot_is_restored_to_the_byte_and_goes_on_as_it_would_have(name):
    with worlds(name, 66, 3) as vec, worlds(name, 66, 4) as other:
        for t, _ in enumerate(play(vec, 90, 1)):
            if t % 30 != 7:
                continue
            saved = vec.snapshot()
            other.restore(saved)
            again = other.snapshot()
            assert saved.keys() == again.keys()
            for part, column in saved.items():
                assert column.tobytes() == again[part].tobytes(), part
        for _ in play(vec, 40, 2):
            pass
        other.restore(saved)
        vec.restore(saved)
        for _ in zip(play(vec, 50, 5), play(other, 50, 5), strict=True):
            assert vec.snapshot()["obs"].tobytes() == other.snapshot()["obs"].tobytes()


def test_a_pendulum_that_is_never_cut_off_stays_in_its_space():
    with fugu.vector.make("pendulum", 8, env_kwargs={"max_steps": 0, "dt": 1.0, "gravity": 0}, num_workers=1) as vec:
        obs, _ = vec.reset(seed=0)
        for _ in range(20_000):
            obs, *_ = vec.step(np.full((8, 1), 2, np.float32))
        assert not misfit("pendulum", obs) and np.hypot(obs[:, 0], obs[:, 1]) == pytest.approx(1, abs=1e-5)


def test_a_state_of_other_settings_is_refused_where_it_would_not_fit():
    with worlds("maze", 3, 0, {"size": 21}) as large, worlds("maze", 3, 0, {"size": 5}) as small:
        before = small.snapshot()
        with pytest.raises(ConfigError, match="world 0 is none that maze can be in with these settings.*another checkpoint"):
            small.restore(large.snapshot())
        assert all(column.tobytes() == before[part].tobytes() for part, column in small.snapshot().items())
