"""PPO against oneself: in some games both seats learn, in the others an earlier version of the policy takes one seat.

For environments of two players. ``pool`` holds earlier versions, spread over the training so far. At the start of a game it is
drawn which player takes each seat; the choice stays in the last column of ``state``, which a source carries from row to row: 0 for
the learner, n for player n of the rating table. Rows of an earlier version are masked, so nothing is learned from them. The results
of games enter the table of ``ratings.py``.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fugu.algorithm.config import PPOConfig, SelfPlayConfig
from fugu.algorithm.contract import Algorithm, Metrics, greedy_is_mode
from fugu.algorithm.parts.clipped import (
    Surrogate,
    act_with_value,
    entropy_at,
    gae_of,
    state_of,
    stops_at,
    with_estimates,
    with_rewards,
)
from fugu.algorithm.parts.ratings import Ratings
from fugu.algorithm.parts.scale import RewardScale, ValueScale
from fugu.algorithm.settings import SelfPlaySettings
from fugu.algorithm.setup import Setup
from fugu.errors import ConfigError
from fugu.ops.ppo_loss import explained_variance
from fugu.policy.actor_critic import ActorCritic, Output
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch

SEATS = 2


class OnHost:
    """Never has enough; but opponents are drawn on the CPU, so that nothing can be recorded."""

    why = "self-play draws opponents and counts games on the CPU"

    def __call__(self, metrics: Metrics) -> bool:
        return False


class SelfPlay(Algorithm):
    Config = SelfPlaySettings
    policy: ActorCritic

    def __init__(
        self,
        policy: ActorCritic,
        settings: SelfPlayConfig,
        config: PPOConfig,
        *,
        num_agents: int,
        seed: int = 0,
        draws: int | None = None,
        weights_of: Callable[[str], Mapping[str, Tensor]] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """``draws``: seed of the draw of opponents. ``weights_of``: reads the newest policy of another run."""
        super().__init__(policy, config, seed=seed, ranks=ranks)
        self.config, self.games = config, settings
        self.reward_scale = RewardScale(num_agents, config.gamma).to(self.device) if config.normalize_reward else None
        self.value_scale = ValueScale().to(self.device) if config.normalize_value else None
        self.entropy_coef: float | Tensor = config.entropy_coef
        self.surrogate = Surrogate(self._look, policy.distribution, config, self.value_scale, turns=True, ranks=ranks)
        self.enough = stops_at(config.target_kl) or OnHost()
        self.pool = nn.ModuleList(copy.deepcopy(policy).requires_grad_(False) for _ in range(settings.pool))
        self.ratings = Ratings()
        self.who: list[int] = []
        """number of the player in each occupied place of the pool"""
        self.draws = torch.Generator().manual_seed(seed + 2 if draws is None else draws)
        """generator of the draw of opponents, if a source has no generators of its own"""
        self.batches = self.rows = 0
        self._returns = np.zeros(num_agents)
        """returns of the running games, by agent"""
        self._over = np.zeros(num_agents, bool)
        """agents that are out of their game, which goes on until both are"""
        self._points = {"score": 0.5, "games": 0.0}
        """results of the last batch against the pool; score: the share of points won"""
        for opponent in settings.opponents:
            assert weights_of is not None
            self._invite(opponent, weights_of(opponent))
        self._keep()

    @classmethod
    def build(cls, setup: Setup) -> SelfPlay:
        envs, settings = setup.envs, setup.settings
        if envs.spec.num_agents != SEATS:
            raise ConfigError(
                f"algorithm=self_play needs an environment of two players; {envs.spec.name} has {envs.spec.num_agents}: use ppo or "
                "mappo"
            )
        return cls(
            setup.policy(),
            settings.self_play,
            settings.ppo,
            num_agents=envs.num_agents,
            seed=setup.seeds.act,
            draws=setup.seeds.draws,
            weights_of=setup.weights_of,
            ranks=setup.ranks,
        )

    # --- playing ---

    @greedy_is_mode
    @torch.inference_mode()
    def act(self, seen: Seen) -> Act:
        if not seen.training:  # the policy plays all seats
            return act_with_value(self.policy, seen, seen.generator or self.generator, self.value_scale)
        seat = torch.zeros_like(seen.first, dtype=torch.int64) if seen.carry is None else seen.carry["seat"]
        player = self._seated(seat, seen.first, seen.generator or self.draws)
        generator = seen.generator or self.generator
        done = act_with_value(self.policy, dataclasses.replace(seen, into=None), generator, self.value_scale)
        distribution, memory = self.policy.distribution, state_of(self.policy, seen)
        for number in player.unique().tolist():
            if number == 0:
                continue
            rows = (player == number).nonzero().squeeze(1)
            out = self._policy_of(number)(seen.obs[rows], None if memory is None else memory[rows], seen.first[rows])
            allowed = None if seen.action_mask is None else seen.action_mask[rows]
            action, _ = distribution.sample_with_logprob(self._distracted(out.params, generator), allowed, generator)
            done.env_action[rows] = distribution.to_env(action)
            if done.carry is not None:
                done.carry["state"][rows] = out.state
        return Act(done.env_action, {**(done.carry or {}), "seat": player}, {**done.columns, "player": player})

    def _distracted(self, params: Tensor, generator: torch.Generator) -> Tensor:
        """Return the parameters that an earlier version draws from: with probability ``noise`` those of uniform random play."""
        if self.games.noise == 0:
            return params
        astray = torch.rand((len(params), 1), generator=generator, device=params.device) < self.games.noise
        return torch.where(astray, 0.0, params)

    def _seated(self, player: Tensor, first: Tensor, draws: torch.Generator) -> Tensor:
        """Seat new players, drawn from ``draws``, where a game begins; rows of a game are neighbours."""
        player = player.clone()
        begins = first.view(-1, SEATS)[:, 0].nonzero().squeeze(1).cpu()
        if len(begins):
            count = len(begins)
            chance = torch.rand((count, 2), generator=draws, device=draws.device).cpu()
            odds = self._odds().to(draws.device)
            who = torch.tensor(self.who)[torch.multinomial(odds, count, replacement=True, generator=draws).cpu()]
            seats = torch.zeros((count, SEATS), dtype=torch.int64)
            past = chance[:, 0] < self.games.past
            seats[past, (chance[past, 1] * SEATS).long()] = who[past]
            player.view(-1, SEATS)[begins.to(player.device)] = seats.to(player.device)
        return player

    def _odds(self) -> Tensor:
        """Return the probability of drawing each place of the pool."""
        if self.games.choose == "even":
            return torch.ones(len(self.who))
        # those who are hard to beat: the chance that a rating says they have of winning
        table = self.ratings.players
        ahead = torch.tensor([table[number].rating - table[0].rating for number in self.who], dtype=torch.float64)
        return (ahead * 6 / 25 / 2**0.5).sigmoid().float() + 0.01

    def _policy_of(self, number: int) -> nn.Module:
        """Return a player's policy; if it left the pool in the middle of a game, that of the player who took its place."""
        place = self.who.index(number) if number in self.who else number % len(self.who)
        return self.pool[place]

    # --- learning ---

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        c, player = self.config, batch["player"]
        self.entropy_coef = entropy_at(c, progress)
        self._score(batch, player)
        self.rows += int(self.ranks.sum(batch["mask"].sum()))
        batch = batch.without("player", "seat").also(mask=batch["mask"] & (player == 0).to(batch["mask"].device))
        batch = with_rewards(batch, c, self.reward_scale, turns=True)
        advantage, target = gae_of(batch, c.gamma, c.lam, turns=True)
        batch = with_estimates(batch, c, advantage, target, self.value_scale, progress, self.ranks)
        one_by_one = self.policy.state_size == 0 and not c.vtrace and c.priority == 0
        return _learned_from(batch) if one_by_one else batch

    def _score(self, batch: Batch, player: Tensor) -> None:
        """Enter the games against earlier versions that ended into the table."""
        agents = len(self._returns)
        passes = batch.segments // agents
        ended = batch["terminated"] | batch["truncated"]
        # [passes, agents, horizon] -> [time, agents]
        lost = batch["lost"] if "lost" in batch else torch.zeros_like(ended)
        reward, over, who, broken = (
            column.cpu().unflatten(0, (passes, agents)).permute(0, 2, 1).reshape(-1, agents).double().numpy()
            for column in (batch["reward"], ended, player, lost)
        )
        found: dict[int, list[float]] = {}
        for gains, ends, seats, cut in zip(reward, over, who.astype(np.int64), broken, strict=True):
            self._returns += gains
            self._over |= ends > 0
            for world in np.flatnonzero(self._over.reshape(-1, SEATS).all(1)):
                pair = slice(world * SEATS, world * SEATS + SEATS)
                opponent = int(seats[pair].max())
                if opponent in self.who and not cut[pair].any():
                    mine = int(seats[pair].argmin())
                    lead = self._returns[pair][mine] - self._returns[pair][1 - mine]
                    found.setdefault(opponent, []).append(0.5 + 0.5 * np.sign(lead))
                self._returns[pair], self._over[pair] = 0.0, False
        found = _joined(self.ranks.gather(found))
        for opponent, scores in sorted(found.items()):
            self.ratings.record(opponent, scores)
        scores = [score for several in found.values() for score in several]
        self._points["games"] = float(len(scores))
        if scores:
            self._points["score"] = float(np.mean(scores))

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        return self.surrogate(batch, self.entropy_coef)

    def _look(self, batch: Batch) -> Output:
        return self.policy(batch["obs"], batch.get("state"), batch["first"])

    def merit(self, score: float, costs: Mapping[str, float]) -> float | None:
        """Return the rating: one player's gain is the other's loss, so returns say nothing."""
        return self.ratings.players[0].rating

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        self.policy.observe(batch["obs"], batch["mask"])
        explained = explained_variance(batch["value"], batch["value_target"], batch["mask"], self.ranks)
        self.batches += 1
        if self.batches % self.games.snapshot_every == 0:
            self._keep()
        found = {"rating": self.ratings.players[0].rating, "opponents": float(len(self.who)), **self._points}
        numbers = {f"self_play/{name}": torch.tensor(value, device=self.device) for name, value in found.items()}
        return {"loss/explained_variance": explained, **numbers}

    def _keep(self) -> None:
        """Add the current policy to the pool, in a free place or in place of another."""
        self._join(self.policy.state_dict(), self.ratings.enter(self.rows))

    def _join(self, weights: Mapping[str, Tensor], number: int) -> None:
        if len(self.who) < len(self.pool):
            place = len(self.who)
            self.who.append(number)
        else:
            place = self._least_missed()
            self.who[place] = number
        self.pool[place].load_state_dict(weights)

    def _least_missed(self) -> int:
        """Return the place that a newcomer takes. Those between the first and the newest are a random sample of all versions so far
        (Vitter's reservoir): a policy that meets only its recent versions forgets how to beat any other."""
        newest = self.who.index(max(self.who))
        others = [place for place in range(len(self.who)) if place not in (newest, self.who.index(min(self.who)))]
        stays = self.ranks.broadcast(
            torch.rand(2, generator=self.draws).tolist()
        )  # the newest so far in the place of one of these?
        if not others or stays[0] * (max(self.who) - 1) >= len(others):
            return newest
        return others[int(stays[1] * len(others))]

    def _invite(self, run: str, weights: Mapping[str, Tensor]) -> None:
        """Add the newest policy of another run to the pool; refused if its environment or network differs."""
        mine = {name: tuple(weight.shape) for name, weight in self.policy.state_dict().items()}
        theirs = {name: tuple(weight.shape) for name, weight in weights.items()}
        if mine != theirs:
            odd = next(name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name))
            raise ConfigError(
                f"self_play.opponents: the policy of {run} does not fit: its {odd} is {theirs.get(odd, 'not there')}, here it is "
                f"{mine.get(odd, 'not there')}; it must have been trained on the same environment with the same policy settings"
            )
        self._join(weights, self.ratings.enter(0))

    def restarted(self) -> None:
        self._returns[:], self._over[:] = 0.0, False
        if self.reward_scale is not None:
            self.reward_scale.running.zero_()

    def get_extra_state(self) -> dict[str, Tensor]:
        return {
            "ratings": self.ratings.state(),
            "who": torch.tensor(self.who),
            "counts": torch.tensor([self.batches, self.rows]),
            "returns": torch.from_numpy(self._returns.copy()),
            "over": torch.from_numpy(self._over.copy()),
            "points": torch.tensor([self._points["score"], self._points["games"]], dtype=torch.float64),
        }

    def set_extra_state(self, state: Any) -> None:
        self.ratings.load_state(state["ratings"])
        self.who = who = state["who"].tolist()
        if not 0 < len(who) <= len(self.pool) or not all(
            type(one) is int and 0 <= one < len(self.ratings.players) for one in who
        ):
            raise ValueError("its pool holds players that are not in its table")
        returns, over = state["returns"].numpy().copy(), state["over"].numpy().copy()
        if returns.shape == over.shape == self._over.shape:  # otherwise they are of other environments
            self._returns, self._over = np.nan_to_num(returns.astype(float)), over.astype(bool)
        self.batches, self.rows = state["counts"].tolist()
        self._points = dict(zip(("score", "games"), state["points"].tolist(), strict=True))


def _joined(tables: list[dict[int, list[float]]]) -> dict[int, list[float]]:
    """Return the scores against each opponent, one table after the other."""
    joined: dict[int, list[float]] = {}
    for table in tables:
        for opponent, scores in table.items():
            joined.setdefault(opponent, []).extend(scores)
    return joined


def _learned_from(batch: Batch) -> Batch:
    """Return the rows that are not masked, as segments of one row each. Of two players one waits, and some are earlier versions:
    most rows would be computed for nothing."""
    mask = batch["mask"].flatten()
    rows = mask.nonzero().squeeze(1)
    if not len(rows):
        return batch
    kept = {name: column for name, column in batch.columns.items() if name not in batch.once}
    return Batch({name: column.flatten(0, 1)[rows][:, None] for name, column in kept.items()})
