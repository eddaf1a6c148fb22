"""Environments as TorchRL's EnvBase, against TorchRL's own check and serial stepping."""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import fugu.vector
from fugu.errors import ConfigError, MissingExtra, SpaceError
from fugu.vector import as_torchrl


def test_without_torchrl_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fugu.vector.adapters_torchrl", raising=False)
    for package in ("torchrl", "tensordict"):
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r'the TorchRL adapter needs an extra: pip install "fugu-rl\[torchrl\]"'):
        as_torchrl("cartpole", 2)


class Parts(gym.Env):
    """Nested spaces on both sides; refuses actions outside."""

    observation_space = gs.Dict(
        {
            "speed": gs.Box(-1, 1, (2,)),
            "pair": gs.Tuple((gs.Discrete(4, start=2), gs.MultiBinary(3))),
            "inner": gs.Dict({"gear": gs.MultiDiscrete([3, 4]), "image": gs.Box(0, 255, (2, 2), np.uint8)}),
        }
    )
    action_space = gs.Dict({"push": gs.Box(-1, 1, (2,)), "mode": gs.Tuple((gs.Discrete(3, start=1), gs.MultiDiscrete([2, 3])))})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"never send {action}")
        self.steps += 1
        reward = action["push"].sum() + action["mode"][0] + 10 * action["mode"][1][1]
        return self.observation_space.sample(), float(reward), self.np_random.random() < 0.1, self.steps == 9, {}


class Words(Parts):
    observation_space = gs.Dict({"word": gs.Text(3)})  # type: ignore[assignment]


def made(opened: list[Any], env: Any, num_envs: int = 3, **settings: Any) -> Any:
    pytest.importorskip("torchrl")
    face = as_torchrl(env, num_envs, **settings)
    opened.append(face)
    return face


@pytest.mark.extras
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "cartpole", "reverse", "safe_point", Parts])
def test_torchrls_own_check_passes(env: Any, opened: list[Any]) -> None:
    check_env_specs = pytest.importorskip("torchrl.envs.utils").check_env_specs
    check_env_specs(made(opened, env, backend="auto" if env in ("cartpole", "reverse", "safe_point") else "serial"))


@pytest.mark.extras
@pytest.mark.parametrize("backend", ["native", "serial"])
def test_a_rollout_with_resets_in_between_equals_serial_stepping(backend: str, opened: list[Any]) -> None:
    face = made(opened, "cartpole", backend=backend)
    singles = [fugu.vector.make("cartpole", 1, backend="serial") for _ in range(3)]
    opened += singles
    face.set_seed(7)
    rollout = face.rollout(120, break_when_any_done=False)
    ended = 0
    for i, vec in enumerate(singles):
        obs, _ = vec.reset(seed=[7 + i])
        for row in rollout[i]:
            np.testing.assert_array_equal(row["observation"].numpy(), obs[0])
            obs, reward, terminated, truncated, _ = vec.step(row["action"].numpy()[None])
            np.testing.assert_array_equal(row["next", "observation"].numpy(), obs[0])
            told = (row["next", "reward"].item(), row["next", "terminated"].item(), row["next", "truncated"].item())
            assert told == (reward[0], terminated[0], truncated[0])
            if terminated[0] or truncated[0]:
                ended += 1
                obs = vec.step(np.zeros(1, int))[0]  # which starts the next episode
    assert ended > 5


@pytest.mark.extras
def test_nested_actions_reach_the_environment_as_its_space_says(opened: list[Any]) -> None:
    face = made(opened, Parts, backend="serial")
    face.set_seed(0)
    rollout = face.rollout(40, break_when_any_done=False)
    action = rollout["action"]
    expected = action["push"].sum(-1) + action["mode", "0"] + 1 + 10 * action["mode", "1"][..., 1]
    np.testing.assert_allclose(rollout["next", "reward"][..., 0].numpy(), expected.numpy(), rtol=1e-5)
    assert rollout["pair", "0"].min() == 0 and str(rollout["inner", "image"].dtype) == "torch.uint8"
    assert rollout["next", "done"].sum() > 5


@pytest.mark.extras
def test_action_masks_keep_torchrl_from_forbidden_actions(opened: list[Any]) -> None:
    envs = pytest.importorskip("torchrl.envs")

    class Masked(gym.Env):
        observation_space = gs.Box(0, 1, (1,))
        action_space = gs.Discrete(5)

        def action_masks(self) -> np.ndarray:
            return np.arange(5) == self.steps % 5

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            if not self.action_masks()[action]:
                raise ValueError("forbidden")
            self.steps += 1
            return np.zeros(1, np.float32), 1.0, self.steps == 7, False, {}

    face = made(opened, Masked, backend="serial")
    rollout = envs.TransformedEnv(face, envs.ActionMask()).rollout(30, break_when_any_done=False)
    assert rollout["action_mask"].shape == (3, 30, 5) and rollout["next", "done"].sum() == 12
    for asked, there in ((None, False), (True, True)):
        spec = made(opened, "CartPole-v1", backend="serial", action_mask=asked).observation_spec
        assert (spec.get("action_mask", None) is not None) is there


@pytest.mark.extras
def test_what_torchrl_cannot_show_is_refused() -> None:
    pytest.importorskip("torchrl")
    with pytest.raises(SpaceError, match=r"observation/word: Text is no tensor"):
        as_torchrl(Words, 2, backend="serial")
    with pytest.raises(ConfigError, match=r"one agent per environment.*as_pettingzoo"):
        as_torchrl("foraging", 2)
