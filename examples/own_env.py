"""An environment of your own, checked and trained: python examples/own_env.py [--steps 200000]"""

import argparse

import gymnasium as gym
import numpy as np

import fugu


class Corridor(gym.Env):
    """Walk to the right end of a corridor; every step costs a little, so the best return is 1 - 0.01 * (length - 1)."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = gym.spaces.Box(0, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.steps = 0, 0
        return self._observe(), {}

    def step(self, action):
        self.position = max(0, self.position + (1 if action == 1 else -1))
        self.steps += 1
        arrived = self.position == self.length
        return self._observe(), 1.0 if arrived else -0.01, arrived, self.steps >= 100, {}

    def _observe(self):
        return np.array([self.position / self.length], np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()

    name = f"{__file__}:Corridor"  # as on the command line: fugu train examples/own_env.py:Corridor --env.length 8
    report = fugu.check_env(name, steps=200)
    assert report.ok, report

    run = fugu.train(name, env_kwargs={"length": 8}, steps=arguments.steps, runs=arguments.runs)
    print(run.evaluate(episodes=100), "(the best possible is 0.93)")


if __name__ == "__main__":
    main()
