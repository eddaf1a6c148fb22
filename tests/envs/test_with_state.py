"""PettingZoo environments with their state in every observation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces as gs

from fugu.algorithm.config import MAPPOConfig
from fugu.emulation.factory import emulate
from fugu.envs.teams import WithState, with_state
from fugu.errors import ConfigError
from fugu.trainer.build import make_trainer
from fugu.trainer.config import TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig


class Rounds(pettingzoo.ParallelEnv):
    """Two agents of different kinds, three steps; the state is the clock. ``b`` dies after the first."""

    metadata: ClassVar = {"name": "rounds_v0"}
    render_mode = None

    def __init__(self, dicts: bool = False) -> None:
        self.possible_agents, self.agents, self.dicts = ["a", "b"], [], dicts

    def observation_space(self, agent: str) -> gs.Space:
        box = gs.Box(-1, 1, (2 if agent == "a" else 3,), np.float32)
        return gs.Dict({"view": box}) if self.dicts else box

    def action_space(self, agent: str) -> gs.Space:
        return gs.Discrete(2 if agent == "a" else 3)

    def state(self) -> np.ndarray:
        return np.array([self.clock, 7], np.float32)

    def _look(self) -> dict[str, Any]:
        return {agent: self.observation_space(agent).sample() for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.clock, self.agents = 0, ["a", "b"]
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.clock += 1
        over = {agent: self.clock == 3 or agent == "b" for agent in self.agents}
        result = (self._look(), dict.fromkeys(over, 1.0), over, dict.fromkeys(over, False), {agent: {} for agent in over})
        self.agents = [agent for agent in self.agents if not over[agent]]
        return result


@pytest.mark.parametrize("dicts", [False, True])
def test_every_observation_holds_the_state_beside_what_it_held(dicts):
    env = WithState(Rounds(dicts))
    own = "view" if dicts else "observation"
    assert list(env.observation_space("a").spaces) == sorted([own, "state"])
    obs, _ = env.reset()
    assert set(obs) == {"a", "b"} and obs["a"]["state"].tolist() == [0, 7] and obs["b"][own].shape == (3,)
    obs, *_ = env.step({"a": 0, "b": 2})
    assert obs["b"]["state"].tolist() == [1, 7]
    rows = emulate(env)
    assert rows.observation_space[own].shape == (3,) and rows.observation_space["state"].shape == (2,)


def test_what_has_no_state_or_has_one_already_is_refused():
    class Stateless(Rounds):
        def state(self) -> np.ndarray:
            raise NotImplementedError

    with pytest.raises(ConfigError, match="leave with_state out"):
        WithState(Stateless())
    with pytest.raises(ConfigError, match="already"):
        WithState(WithState(Rounds()))
    with pytest.raises(ConfigError, match="parallel"):
        with_state("CartPole-v1")


@pytest.mark.parametrize("critic", ["state", "agent", "observations", "own"])
@pytest.mark.parametrize("networks", ["shared", "per_agent"])
def test_agents_of_different_kinds_train_together_though_one_dies_early(critic, networks):
    config = TrainConfig(
        env="tests.envs.test_with_state:make",
        algorithm="mappo",
        horizon=8,
        threads=1,
        epochs=2,
        vector=VectorConfig(num_envs=4, backend="serial"),
        mappo=MAPPOConfig(critic=critic, networks=networks),
    )
    trainer = make_trainer(config)
    trainer.start()
    batch = trainer.engine.collect(bool).batch
    assert batch["mask"][0::2].float().mean() > 2 * batch["mask"][1::2].float().mean() > 0
    metrics = [trainer.update(Interrupt()) for _ in range(3)]
    trainer.close()
    assert all(np.isfinite(list(row.values())).all() for row in metrics)
    assert not batch["action_mask"][0::2, :, 2][batch["mask"][0::2]].any()


def make() -> WithState:
    return WithState(Rounds())
