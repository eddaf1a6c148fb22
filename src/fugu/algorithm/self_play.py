"""PPO against oneself: in some games both seats learn, in the others one is taken by an earlier version of the policy.

For environments of two players. ``pool`` holds earlier versions, spread over the training so far. When a game begins it
is drawn who plays it; who that is stays in the last column of ``state``, which a source carries from row to row for us: 0 for the
learner, n for player n of the rating table. Rows of an earlier version are masked: nobody learns from them. What the games say of
everyone's strength goes into the table of ``ratings.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fugu.algorithm.config import PPOConfig, SelfPlayConfig
from fugu.algorithm.contract import Metrics
from fugu.algorithm.make import default_policy
from fugu.algorithm.ppo import PPO
from fugu.algorithm.ratings import Ratings
from fugu.errors import ConfigError
from fugu.policy.actor_critic import ActorCritic
from fugu.rollout.batch import PER_SEGMENT, Batch
from fugu.rollout.onpolicy import Act
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
    from fugu.trainer.config import TrainConfig

SEATS = 2


def make(config: TrainConfig, vec: VecEnv | DeviceVec, device: torch.device) -> SelfPlay:
    if vec.spec.num_agents != SEATS:
        raise ConfigError(
            f"algorithm=self_play needs an environment of two players; {vec.spec.name} has {vec.spec.num_agents}: use ppo or mappo"
        )
    policy = default_policy(config, vec, device)
    return SelfPlay(policy, config.self_play, config.ppo, num_agents=vec.num_agents, seed=config.seed)


class SelfPlay(PPO):
    def __init__(self, policy: ActorCritic, settings: SelfPlayConfig, config: PPOConfig, *, num_agents: int, seed: int) -> None:
        super().__init__(policy, config, num_agents=num_agents, seed=seed, turns=True)
        self.settings = settings
        self.pool = nn.ModuleList(copy.deepcopy(policy).requires_grad_(False) for _ in range(settings.pool))
        self.modules["pool"] = self.pool
        self.ratings = Ratings()
        self.who: list[int] = []
        """number of the player in each place of the pool that is taken"""
        self.draws = torch.Generator().manual_seed(seed + 2)
        """of who plays whom, where a source has no generators of its own"""
        self.batches = self.rows = 0
        self._returns = np.zeros(num_agents)
        """of the running games, by agent"""
        self._over = np.zeros(num_agents, bool)
        """agents who are out of their game, which goes on until both are"""
        self._points = {"score": 0.5, "games": 0.0}
        """of the last batch against the pool; score: the share of points won"""
        for opponent in settings.opponents:
            self._invite(opponent)
        self._keep()

    @property
    def state_size(self) -> int:
        return super().state_size + 1

    @property
    def columns(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {**super().columns, "player": ((), torch.int64)}

    # --- playing ---

    @torch.inference_mode()
    def act(
        self,
        obs: Tensor,
        state: Tensor | None,
        first: Tensor,
        action_mask: Tensor | None,
        *,
        greedy: bool = False,
        into: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Act:
        if state is None or state.shape[-1] != self.state_size:  # not in training: the policy plays all seats
            return super().act(obs, state, first, action_mask, greedy=greedy, into=into, generator=generator)
        player = self._seated(state[:, -1].long(), first, generator or self.draws)
        memory = state[:, :-1] if state.shape[-1] > 1 else None
        done = super().act(obs, memory, first, action_mask, greedy=greedy, generator=generator)
        distribution = self.policy.distribution
        for number in player.unique().tolist():
            if number == 0:
                continue
            rows = (player == number).nonzero().squeeze(1)
            out = self._version(number)(obs[rows], None if memory is None else memory[rows], first[rows])
            allowed = None if action_mask is None else action_mask[rows]
            drawn_from = self._distracted(out.params, generator or self.generator)
            action, _ = distribution.sample_with_logprob(drawn_from, allowed, generator or self.generator)
            done.env_action[rows] = distribution.to_env(action)
            if done.state is not None:
                done.state[rows] = out.state
        kept = player[:, None].to(state.dtype)
        after = kept if done.state is None else torch.cat([done.state, kept], 1)
        return Act(done.env_action, after, {**done.columns, "player": player})

    def _distracted(self, params: Tensor, generator: torch.Generator) -> Tensor:
        """What an earlier version draws from: with the chance of ``noise`` what a policy that knows nothing would."""
        if self.settings.noise == 0:
            return params
        astray = torch.rand((len(params), 1), generator=generator, device=params.device) < self.settings.noise
        return torch.where(astray, 0.0, params)

    def _seated(self, player: Tensor, first: Tensor, draws: torch.Generator) -> Tensor:
        """Who sits where, with new players, drawn from ``draws``, where a game begins: rows of a game are neighbours."""
        player = player.clone()
        begins = first.view(-1, SEATS)[:, 0].nonzero().squeeze(1).cpu()
        if len(begins):
            count = len(begins)
            chance = torch.rand((count, 2), generator=draws, device=draws.device).cpu()
            odds = self._odds().to(draws.device)
            who = torch.tensor(self.who)[torch.multinomial(odds, count, replacement=True, generator=draws).cpu()]
            seats = torch.zeros((count, SEATS), dtype=torch.int64)
            past = chance[:, 0] < self.settings.past
            seats[past, (chance[past, 1] * SEATS).long()] = who[past]
            player.view(-1, SEATS)[begins.to(player.device)] = seats.to(player.device)
        return player

    def _odds(self) -> Tensor:
        """How likely each place of the pool is drawn."""
        if self.settings.choose == "even":
            return torch.ones(len(self.who))
        # those who are hard to beat: the chance that a rating says they have of winning
        table = self.ratings.players
        ahead = torch.tensor([table[number].rating - table[0].rating for number in self.who], dtype=torch.float64)
        return (ahead * 6 / 25 / 2**0.5).sigmoid().float() + 0.01

    def _version(self, number: int) -> nn.Module:
        """A player's policy, or of one that left in the middle of a game who took its place."""
        place = self.who.index(number) if number in self.who else number % len(self.who)
        return self.pool[place]

    # --- learning ---

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        columns = dict(batch.columns)
        player = columns.pop("player")
        self._score(batch, player)
        state = columns.pop("state")
        if state.shape[-1] > 1:
            columns["state"] = state[:, :-1]
        columns["mask"] = columns["mask"] & (player == 0).to(columns["mask"].device)
        self.rows += int(columns["mask"].sum())
        prepared = super().prepare(Batch(columns), progress)
        one_by_one = self.policy.state_size == 0 and not self.config.vtrace and self.config.priority == 0
        return _learned_from(prepared) if one_by_one else prepared

    def _score(self, batch: Batch, player: Tensor) -> None:
        """Find the games against earlier versions that ended, and let the table know."""
        agents = len(self._returns)
        passes = batch.segments // agents
        ended = batch["terminated"] | batch["truncated"]
        # [passes, agents, horizon] -> [time, agents]
        reward, over, who = (
            column.cpu().unflatten(0, (passes, agents)).permute(0, 2, 1).reshape(-1, agents).double().numpy()
            for column in (batch["reward"], ended, player)
        )
        found: dict[int, list[float]] = {}
        for gains, ends, seats in zip(reward, over, who.astype(np.int64), strict=True):
            self._returns += gains
            self._over |= ends > 0
            for world in np.flatnonzero(self._over.reshape(-1, SEATS).all(1)):
                pair = slice(world * SEATS, world * SEATS + SEATS)
                opponent = int(seats[pair].max())
                if opponent in self.who:
                    mine = int(seats[pair].argmin())
                    lead = self._returns[pair][mine] - self._returns[pair][1 - mine]
                    found.setdefault(opponent, []).append(0.5 + 0.5 * np.sign(lead))
                self._returns[pair], self._over[pair] = 0.0, False
        for opponent, scores in sorted(found.items()):
            self.ratings.record(opponent, scores)
        scores = [score for several in found.values() for score in several]
        self._points["games"] = float(len(scores))
        if scores:
            self._points["score"] = float(np.mean(scores))

    def merit(self, score: float) -> float | None:
        """Its rating: one player's gain is the other's loss, so returns say nothing."""
        return self.ratings.players[0].rating

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        metrics = super().finish(batch)
        self.batches += 1
        if self.batches % self.settings.snapshot_every == 0:
            self._keep()
        found = {"rating": self.ratings.players[0].rating, "opponents": float(len(self.who)), **self._points}
        return {**metrics, **{f"self_play/{name}": torch.tensor(value, device=self.device) for name, value in found.items()}}

    def _keep(self) -> None:
        """The policy of this moment joins the pool, in a free place or in that of another."""
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
        """The place that a newcomer takes. Those between the first and the newest are a random sample of all there were (Vitter's
        reservoir): a policy that meets only what it was a moment ago forgets how to beat anyone else."""
        newest = self.who.index(max(self.who))
        others = [place for place in range(len(self.who)) if place not in (newest, self.who.index(min(self.who)))]
        stays = torch.rand(2, generator=self.draws).tolist()  # the newest so far in the place of one of these?
        if not others or stays[0] * (max(self.who) - 1) >= len(others):
            return newest
        return others[int(stays[1] * len(others))]

    def _invite(self, run: str) -> None:
        """The newest policy of another run joins the pool; refused if it is not one of the same environment and network."""
        from fugu.trainer import checkpoint

        folder = Path(run) / "checkpoints" if (Path(run) / "checkpoints").is_dir() else Path(run)
        try:
            newest = checkpoint.find(folder, "latest")
        except checkpoint.CheckpointError:
            raise ConfigError(
                f"self_play.opponents: {run} is no folder of a run with a checkpoint in it; give paths, as in "
                "--self-play.opponents runs/connect4-20260131-120000"
            ) from None
        saved = checkpoint.load(newest)
        mine = {name: tuple(weight.shape) for name, weight in self.policy.state_dict().items()}
        theirs = {name: tuple(weight.shape) for name, weight in saved.tensors["policy"].items()}
        if mine != theirs:
            odd = next(name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name))
            raise ConfigError(
                f"self_play.opponents: the policy of {run} does not fit: its {odd} is {theirs.get(odd, 'not there')}, here it is "
                f"{mine.get(odd, 'not there')}; it must have been trained on the same environment with the same policy settings"
            )
        self._join(saved.tensors["policy"], self.ratings.enter(0))

    @property
    def asks(self) -> str | None:
        return "self-play draws opponents and counts games on the CPU"

    def fuse(self, config: TrainConfig) -> None:
        """Its kernels know one policy only."""

    def restarted(self) -> None:
        super().restarted()
        self._returns[:], self._over[:] = 0.0, False

    def state(self) -> dict[str, Tensor]:
        return {
            **super().state(),
            "draws": self.draws.get_state(),
            "ratings": self.ratings.state(),
            "who": torch.tensor(self.who),
            "counts": torch.tensor([self.batches, self.rows]),
            "returns": torch.from_numpy(self._returns.copy()),
            "over": torch.from_numpy(self._over.copy()),
            "points": torch.tensor([self._points["score"], self._points["games"]], dtype=torch.float64),
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_state(state)
        self.draws.set_state(state["draws"])
        self.ratings.load_state(state["ratings"])
        self.who = state["who"].tolist()
        self.batches, self.rows = state["counts"].tolist()
        self._returns, self._over = state["returns"].numpy().copy(), state["over"].numpy().copy()
        self._points = dict(zip(("score", "games"), state["points"].tolist(), strict=True))


def _learned_from(batch: Batch) -> Batch:
    """The rows that are not masked, as segments of one row each: of two players one waits, and some are earlier versions, so that most
    rows would be computed for nothing."""
    mask = batch["mask"].flatten()
    rows = mask.nonzero().squeeze(1)
    if not len(rows):
        return batch
    kept = {name: column for name, column in batch.columns.items() if name not in PER_SEGMENT}
    return Batch({name: column.flatten(0, 1)[rows][:, None] for name, column in kept.items()})
