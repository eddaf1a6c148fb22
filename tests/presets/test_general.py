"""An environment nobody has tuned for is built to be looked at, within its time; its settings follow from what it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces as gs

import fugu
import fugu.presets.general
from fugu.cli.main import main
from fugu.config import override
from fugu.emulation.env import EnvSpec
from fugu.errors import EnvError, EnvTimeout
from fugu.presets import preset

ENV = "tests.faults.faulty:Faulty"
general_module = sys.modules["fugu.presets.general"]  # the package has a function of that name
HANGS = {"fault": "sleep", "phase": "make"}


@pytest.mark.parametrize(
    "settings", [{"start_timeout": 0.3}, {"vector": {"start_timeout": 0.3}}, {"vector.start_timeout": 0.3}]
)
def test_a_constructor_that_hangs_ends_with_the_start_timeout(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(EnvTimeout, match=r"no answer within 0.3 s \(start_timeout\)"):
        fugu.train(ENV, env_kwargs=HANGS, runs=tmp_path, **settings)


@pytest.mark.parametrize("flag", ["--start-timeout", "--vector.start-timeout"])
def test_so_it_does_on_the_command_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", ENV, "--env.fault", "sleep", "--env.phase", "make", flag, "0.3"]) == 1
    assert "no answer within 0.3 s (start_timeout)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kwargs", "says"), [({"size": 3}, "argument 'size'"), ({**HANGS, "fault": "raise"}, "the env broke in make")]
)
def test_a_constructor_that_raises_is_an_error_of_the_environment(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(EnvError, match=says) as raised:
        preset(ENV, kwargs)
    assert raised.value.phase == "make"


def settings(monkeypatch: pytest.MonkeyPatch, agents: int = 1, action: gs.Space | None = None) -> Any:
    """Return the config of a Python environment with this many agents."""
    spec = EnvSpec(gs.Box(-1.0, 1.0, (3,)), action or gs.Discrete(2), agents, name="Some")
    monkeypatch.setattr(general_module, "_look", lambda *_: spec)
    return general_module.general("some:Env", {}, 1.0)


@pytest.mark.parametrize("agents", [1, 2, 3, 4, 5, 7, 8, 16, 33, 100])
@pytest.mark.parametrize("num_envs", [None, 1, 2, 5, 16])
def test_minibatches_divide_the_batch_for_any_number_of_agents_and_environments(
    agents: int, num_envs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(monkeypatch, agents)
    if num_envs is not None:
        config = override(config, {"num_envs": num_envs})
    segments = config.vector.num_envs * agents * config.passes
    assert config.minibatches(segments) * config.minibatch == segments * config.horizon


def test_one_agent_learns_from_each_row_as_often_and_in_as_small_minibatches_as_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = settings(monkeypatch)
    assert (config.minibatch, config.epochs) == (64, 10)


def test_several_agents_take_fewer_gradient_steps_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient_steps(agents: int) -> int:
        config = settings(monkeypatch, agents)
        return config.epochs * config.minibatches(config.vector.num_envs * agents * config.passes)

    assert gradient_steps(1) == 160
    assert gradient_steps(2) == gradient_steps(30) == 16


def test_values_of_several_agents_have_mean_0_so_that_states_nobody_has_seen_promise_nothing(monkeypatch) -> None:
    assert [settings(monkeypatch, agents).ppo.normalize_value for agents in (1, 2)] == [False, True]
    assert not general_module.general("snake", {}, 1.0).ppo.normalize_value


def test_only_discrete_actions_get_an_entropy_bonus(monkeypatch: pytest.MonkeyPatch) -> None:
    discrete, continuous = (settings(monkeypatch, action=action) for action in (gs.Discrete(3), gs.Box(-1.0, 1.0, (2,))))
    assert discrete.ppo.entropy_coef > 0 == continuous.ppo.entropy_coef
    assert discrete.policy.share and not continuous.policy.share


def test_native_environments_step_by_the_hundred() -> None:
    config = general_module.general("cartpole", {}, 1.0)
    assert (config.vector.num_envs, config.passes, config.epochs) == (1024, 1, 2)


@pytest.mark.slow
def test_frozen_lake_is_learned_on_a_small_budget(tmp_path: Path) -> None:
    run = fugu.train("FrozenLake-v1", steps=60_000, threads=1, num_workers=1, runs=tmp_path, **{"log.board": "off"})
    assert run.evaluate(200, seed=5).mean > 0.35  # 0.02 by chance, 0.74 at most
