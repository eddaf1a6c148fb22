"""Ratings of players from the games they played: Bradley-Terry (Weng & Lin 2011), computed by openskill.

Everyone starts at 25 with an uncertainty of 25 / 3; four points more win about 72% of games. A snapshot starts with the learner's
rating at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fugu.errors import MissingExtra

START, DOUBT = 25.0, 25.0 / 3.0
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
        try:
            from openskill.models import BradleyTerryFull
        except ImportError:
            raise MissingExtra("the rating table of self-play", "selfplay") from None
        self._model = BradleyTerryFull(mu=START, sigma=DOUBT, beta=START / 6, tau=0.0)
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
        for score in scores:
            mine = self._model.rating(one.rating, (one.doubt**2 + DRIFT**2) ** 0.5)
            theirs = self._model.rating(other.rating, other.doubt)
            ranks = [1 - score, score]
            [[mine], [theirs]] = self._model.rate([[mine], [theirs]], ranks=ranks)
            one.rating, one.doubt = mine.mu, mine.sigma
            other.rating, other.doubt = theirs.mu, theirs.sigma
            one.games += 1
            other.games += 1

    def state(self) -> Tensor:
        rows = [[p.steps, p.rating, p.doubt, p.games] for p in self.players]
        return torch.tensor(rows, dtype=torch.float64)

    def load_state(self, state: Tensor) -> None:
        self.players = players(state)


def players(state: Tensor) -> list[Player]:
    """Return the table that a checkpoint holds."""
    return [Player(int(steps), rating, doubt, int(games)) for steps, rating, doubt, games in state.tolist()]
