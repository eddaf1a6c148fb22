"""Every metric a run writes: name, unit, definition, and whether the same config and seed give the same number.

This table decides which file a metric goes to: ``metrics.jsonl`` if it is deterministic, ``timing.jsonl`` if not. Under ``env/`` and
``loss/`` environments and algorithms may add names, under ``user/`` and ``time/user/`` callbacks; everywhere else an unknown name is
a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass

from fugu.errors import FuguError, did_you_mean


@dataclass(frozen=True)
class Metric:
    unit: str
    """unit of the value; "" for a plain number"""
    definition: str
    deterministic: bool = True
    """True if the value is the same for the same config and seed, on a CPU"""


PHASES = {
    "env": "stepping environments",
    "inference": "choosing actions",
    "copy": "moving observations and actions between buffers and devices",
    "rollout": "stepping environments and choosing actions, both on the GPU",
    "wait_rollout": "waiting for the batch that is played meanwhile",
    "advantage": "computing advantages and targets",
    "update": "losses, gradients and optimizer steps",
    "other": "everything else: logging, checkpoints, evaluation",
}
"""phases that a Timer tells apart -> what happens in each"""

METRICS: dict[str, Metric] = {
    "steps": Metric(
        "steps", "rows that environments played and an agent acted on, since the start of the run, over all agents"
    ),
    "learned": Metric("rows", "rows learned from, since the start of the run; rows that only others acted on are not"),
    "updates": Metric("updates", "batches learned from, since the start of the run"),
    "episodes": Metric("episodes", "episodes that ended, since the start of the run"),
    "score": Metric(
        "",
        "mean undiscounted return of the last 100 episodes, counted in rounds; there is none before; target and best follow it",
    ),
    "episode/return": Metric("", "mean undiscounted return of the episodes that ended since the last line"),
    "episode/length": Metric("steps", "mean length of the episodes that ended since the last line"),
    "episode/cost": Metric("", "mean undiscounted cost of the episodes that ended since the last line"),
    "eval/return": Metric("", "mean undiscounted return of the episodes of an evaluation during training"),
    "eval/length": Metric("steps", "mean length of the episodes of an evaluation during training"),
    "eval/cost": Metric("", "mean undiscounted cost of the episodes of an evaluation during training"),
    "eval/episodes": Metric("episodes", "episodes of an evaluation during training"),
    "loss/policy": Metric("", "mean policy loss of the minibatches of an update"),
    "loss/value": Metric("", "mean value loss of the minibatches, before its coefficient"),
    "loss/entropy": Metric("nats", "mean entropy of the policy over unmasked rows"),
    "loss/kl": Metric("nats", "estimate of KL(old || new): the mean of ratio - 1 - log(ratio)"),
    "loss/clip_fraction": Metric("share", "rows whose probability ratio lies outside the clip range"),
    "loss/imitation": Metric("nats", "mean of -log p of what was done, on recorded rows"),
    "loss/critic": Metric("", "mean squared error of the critics, towards what they learn towards"),
    "loss/q": Metric("", "mean of what the critics say of the actions in the minibatches"),
    "loss/temperature": Metric("reward per nat", "what entropy counts for, as it is learned"),
    "loss/explained_variance": Metric(
        "", "1 - Var(return - value) / Var(return) of a batch; 1 is perfect, 0 no better than the mean"
    ),
    "loss/zero_spread": Metric("share", "groups whose episodes all have the same return, so that nothing is learned from them"),
    "loss/unscored": Metric("share", "episodes that are left out: without a return, or cut off where such do not count"),
    "loss/cut_off": Metric("share", "episodes of a batch that were truncated"),
    "loss/score_deviation": Metric("", "mean over the groups of the deviation of returns in a group"),
    "loss/advantage": Metric("", "mean absolute advantage of the episodes that count"),
    "loss/tokens": Metric("tokens", "mean length of the episodes that count, in choices of the policy"),
    "loss/redrawn": Metric(
        "share", "groups that took the place of others without spread; steps count both, learned only these"
    ),
    "loss/reference_kl": Metric("nats", "estimate of KL(policy || reference) per token"),
    "loss/mismatch_kl": Metric("nats", "estimate of KL(sampler || learner) per token, before learning"),
    "loss/cost_value": Metric("", "mean value loss of the cost critics, in units of the deviation of their targets"),
    "loss/cost_explained_variance": Metric(
        "", "as loss/explained_variance, of the cost critics; with several costs their mean"
    ),
    "safe/limit": Metric("", "what an episode may cost on average"),
    "safe/lambda": Metric("reward per cost", "the multiplier: what a unit of cost counts for in the advantage"),
    "safe/over_limit": Metric("share", "of the episodes that ended last, those that cost more than the limit"),
    "loss/observation": Metric("", "mean loss of a world model's picture of what was observed"),
    "loss/reward": Metric("nats", "mean cross entropy of a world model's rewards"),
    "loss/continue": Metric("nats", "mean cross entropy of whether the episode goes on, by a world model"),
    "loss/allowed": Metric("nats", "mean cross entropy of which choices are allowed, by a world model"),
    "loss/dynamics": Metric(
        "nats", "divergence of observed from expected states; what is below dreamer.free_nats counts as that"
    ),
    "loss/representation": Metric("nats", "the same number as loss/dynamics; it moves the observed states"),
    "loss/return": Metric("", "mean return that is imagined"),
    "loss/return_scale": Metric("", "range of imagined returns, 5th to 95th percentile, followed slowly; at least 1"),
    "loss/grad_norm": Metric("", "mean norm of the gradient before clipping"),
    "loss/total": Metric("", "mean of what is minimised"),
    "self_play/rating": Metric("", "of the learner, in the table of all versions (a newcomer has 25)"),
    "self_play/score": Metric(
        "share", "of the points won in games against earlier versions that ended in the last batch with any"
    ),
    "self_play/games": Metric("games", "against earlier versions that ended in the last batch"),
    "self_play/opponents": Metric("", "earlier versions in the pool"),
    "learning_rate": Metric("", "of the last optimizer step"),
    "policy/lag": Metric("updates", "between the weights that played the last batch and those that learned from it"),
    "time/wall": Metric("seconds", "since the run started, without the time between a stop and a resume", False),
    "time/steps_per_second": Metric("steps/s", "steps since the last line over the wall time since then", False),
    **{
        f"time/{name}": Metric("share", f"of the wall time since the last line: {text}", False) for name, text in PHASES.items()
    },
    "time/wait_learner": Metric(
        "share", "of the wall time since the last line in which the thread that plays waited for the learner", False
    ),
    "nodes/lag": Metric("updates", "by which the policy that played was behind the one that learned", False),
    "nodes/alive": Metric("nodes", "of a cluster that played the last batch", False),
    "nodes/restarts": Metric("", "nodes, and workers and environments of theirs, that were lost and replaced so far", False),
    "nodes/wait": Metric("seconds", "for the nodes' rows, in the last update", False),
    "nodes/slowest": Metric("", "time that the slowest node took for its part, over the mean of all", False),
    "nodes/bytes_in": Metric("bytes", "that came from all nodes for the last batch", False),
    "nodes/bytes_out": Metric("bytes", "of weights and statistics that each node was sent for a batch", False),
    "system/cpu": Metric("share", "busy part of the processor cores this process may use", False),
    "system/memory": Metric("bytes", "resident memory of this process and its workers", False),
    "system/gpu": Metric("share", "of the time in which a kernel ran on the GPU", False),
    "system/gpu_memory": Metric("bytes", "in use on the GPU, by anyone", False),
}

OPEN = {
    "episode/return/": Metric("", "as episode/return, of this agent or of the agents of this kind"),
    "episode/length/": Metric("steps", "as episode/length, of this agent or of the agents of this kind"),
    "eval/return/": Metric("", "as eval/return, of this agent or of the agents of this kind"),
    "eval/length/": Metric("steps", "as eval/length, of this agent or of the agents of this kind"),
    "eval/env/": Metric("", "as env/NAME, over the episodes of an evaluation"),
    "episode/cost/": Metric("", "mean undiscounted cost of this kind of the episodes that ended since the last line"),
    "eval/cost/": Metric("", "mean undiscounted cost of this kind of the episodes of an evaluation"),
    "env/": Metric(
        "", "mean of a number that the environment says of an episode, over the episodes since the last line that have it"
    ),
    "safe/limit/": Metric("", "what an episode may cost on average, of this kind"),
    "safe/lambda/": Metric("reward per cost", "the multiplier of this cost"),
    "safe/over_limit/": Metric("share", "of the episodes that ended last, those that cost more of this kind than its limit"),
    "loss/": Metric("", "mean over the minibatches of an update"),
    "user/": Metric("", "logged by a callback"),
    "time/user/": Metric("", "logged by a callback, of what the machine decides", False),
}
"""prefix -> meaning of an unlisted name under it"""


def describe(name: str) -> Metric:
    """Return the table's line for ``name``; FuguError with the nearest names if there is none."""
    metric = METRICS.get(name)
    if metric is not None:
        return metric
    for prefix, metric in OPEN.items():
        if name.startswith(prefix) and name != prefix:
            return metric
    raise FuguError(
        f"there is no metric {name!r}.{did_you_mean(name, METRICS)} Names of your own go under env/, loss/ or user/"
    )
