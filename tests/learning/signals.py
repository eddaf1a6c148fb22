"""Two agents of different kinds that must agree on a language, as a PettingZoo environment.

The speaker sees one of three colours and says one of three words, which cost nothing and mean nothing. The listener hears it in the
next step, and both are paid 1 if it then picks that colour of five it can pick. Without words that mean something the best is 1/3.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pettingzoo
from gymnasium import spaces as gs

COLOURS, WORDS, PICKS = 3, 3, 5


class Signals(pettingzoo.ParallelEnv):
    metadata: ClassVar = {"name": "signals_v0"}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["speaker", "listener"], []
        self._spaces = {
            "speaker": (gs.Box(0, 1, (COLOURS,), np.float32), gs.Discrete(WORDS)),
            "listener": (gs.Box(0, 1, (WORDS + 1,), np.float32), gs.Discrete(PICKS)),
        }

    def observation_space(self, agent: str) -> gs.Space:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> gs.Space:
        return self._spaces[agent][1]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.colour, self.word, self.agents = int(self.random.integers(COLOURS)), None, list(self.possible_agents)
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        over = self.word is not None
        paid = float(over and int(actions["listener"]) == self.colour)
        self.word = int(actions["speaker"])
        agents = list(self.agents)
        self.agents = [] if over else agents
        flags = [dict.fromkeys(agents, value) for value in (paid, over, False)]
        return self._look(), *flags, {agent: {} for agent in agents}

    def _look(self) -> dict[str, np.ndarray]:
        heard = np.eye(WORDS + 1, dtype=np.float32)[WORDS if self.word is None else self.word]  # the last: nothing yet
        return {"speaker": np.eye(COLOURS, dtype=np.float32)[self.colour], "listener": heard}
