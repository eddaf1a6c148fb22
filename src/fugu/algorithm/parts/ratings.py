"""Ratings of players from the games they played: the Bradley-Terry model of Weng & Lin (2011, algorithm 1) for games of two.

Everyone starts at 25 with an uncertainty of 25 / 3; four points more win about 72% of games. A snapshot starts with the learner's
rating at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

START, DOUBT = 25.0, 25.0 / 3.0
NOISE = START / 6
"""deviation of how well a player of a known rating plays"""
DRIFT = 0.1
"""added to the learner's uncertainty between two games, because it changes"""


@dataclass
class Player:
    steps: int
    """steps of the training at which it was taken"""
    rating: float = START
    doubt: float = DOUBT
    games: int = 0


class Ratings:
    """The rating table. Player 0 is the learner as it is now; the others do not change any more and never leave the table."""

    def __init__(self) -> None:
        self.players = [Player(0)]

    def enter(self, steps: int) -> int:
        """Add the learner of this moment as a separate player, and return its number."""
        learner = self.players[0]
        learner.steps = steps
        self.players.append(Player(steps, learner.rating, learner.doubt))
        return len(self.players) - 1

    def record(self, opponent: int, scores: Iterable[float]) -> None:
        """Take in games of the learner against ``opponent``, in order: 1 won, 0.5 drawn, 0 lost."""
        one, other = self.players[0], self.players[opponent]
        for score in map(float, scores):
            mine, theirs = (one.rating, math.hypot(one.doubt, DRIFT)), (other.rating, other.doubt)
            one.rating, one.doubt = rated(mine, theirs, score)
            other.rating, other.doubt = rated(theirs, mine, 1 - score)
            one.games += 1
            other.games += 1

    def state(self) -> Tensor:
        rows = [[p.steps, p.rating, p.doubt, p.games] for p in self.players]
        return torch.tensor(rows, dtype=torch.float64)

    def load_state(self, state: Tensor) -> None:
        self.players = players(state)


def rated(mine: tuple[float, float], theirs: tuple[float, float], score: float) -> tuple[float, float]:
    """Return the rating and doubt of a player after a game: 1 won, 0.5 drawn, 0 lost."""
    (rating, doubt), (other, other_doubt) = mine, theirs
    spread = math.sqrt(doubt**2 + other_doubt**2 + 2 * NOISE**2)
    chance = 1 / (1 + math.exp(min((other - rating) / spread, 700.0)))
    share = doubt**2 / spread
    shrink = doubt / spread * share / spread * chance * (1 - chance)
    return rating + share * (score - chance), doubt * math.sqrt(max(1 - shrink, 1e-4))


def players(state: Tensor) -> list[Player]:
    """Return the table that a checkpoint holds; a ValueError if it holds none."""
    fine = state.dim() == 2 and state.shape[1] == 4 and len(state) > 0 and bool(state.double().isfinite().all())
    if not fine or (state[:, 2] <= 0).any() or (state[:, [0, 3]] < 0).any() or (state.abs() > 1e15).any():
        raise ValueError("its table of ratings has numbers that no player can have")
    return [Player(int(steps), rating, doubt, int(games)) for steps, rating, doubt, games in state.tolist()]
