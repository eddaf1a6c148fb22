"""Eight prompts, four answers, one of them right: 1 if it is, plus an offset of the prompt's own between -5 and 5.

Which answer is right is easy to learn from the difference that it makes, and hard if the answers of different prompts are
compared: then offsets drown it. A policy of chance answers a quarter rightly. Seeds give prompts; nothing else is random.
"""

from __future__ import annotations

import gymnasium
import numpy as np

RIGHT = (2, 0, 3, 1, 1, 3, 0, 2)
OFFSETS = np.linspace(-5, 5, 8)[[3, 6, 0, 5, 2, 7, 1, 4]]


class OffsetPrompts(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(8)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.prompt = int(self.np_random.integers(8))
        return self.prompt, {}

    def step(self, action):
        right = float(action == RIGHT[self.prompt])
        return self.prompt, right + float(OFFSETS[self.prompt]), True, False, {}


def accuracy(algorithm) -> float:
    """How often the policy of ``algorithm`` draws the right answer, over all prompts."""
    import torch

    from fugu.rollout.acting import Seen

    obs = torch.arange(8).repeat(200)
    drawn = algorithm.act(Seen(obs, torch.ones(1600, dtype=torch.bool))).columns["action"][:, 0]
    return float((drawn == torch.tensor(RIGHT).repeat(200)).float().mean())
