"""Short trainings whose metrics are known to the last bit: what they are, and how one is run.

Run as a program it writes the digests anew: ``python -m tests.contract.results``.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import fugu

CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ppo_native": ("cartpole", {"steps": 24 * 2048, "num_envs": 64, "horizon": 32, "minibatch": 512, "epochs": 2}),
    "ppo_gymnasium": (
        "CartPole-v1",
        {"steps": 24 * 512, "num_envs": 16, "horizon": 32, "minibatch": 128, "vector.backend": "process", "num_workers": 2},
    ),
    "ppo_lstm": (
        "memory",
        {"steps": 24 * 1024, "num_envs": 64, "horizon": 16, "minibatch": 256, "epochs": 2, "core": "lstm", "core_size": 32},
    ),
    "ppo_mingru": (
        "memory",
        {"steps": 24 * 1024, "num_envs": 64, "horizon": 16, "minibatch": 256, "epochs": 2, "core": "mingru", "core_size": 32},
    ),
    "ppo_continuous": (
        "pendulum",
        {"steps": 24 * 1024, "num_envs": 32, "horizon": 32, "minibatch": 256, "epochs": 2, "normalize_observation": True},
    ),
    "ppo_vtrace_priority_muon": (
        "cartpole",
        {
            "steps": 24 * 1024,
            "num_envs": 32,
            "horizon": 32,
            "minibatch": 256,
            "epochs": 2,
            "vtrace": True,
            "priority": 0.8,
            "optimizer.name": "muon",
            "normalize_value": True,
            "value_clip": 0.2,
        },
    ),
    "safe_ppo": (
        "knapsack_cmdp",
        {
            "algorithm": "safe_ppo",
            "steps": 24 * 1024,
            "num_envs": 32,
            "horizon": 32,
            "minibatch": 256,
            "normalize_reward": True,
        },
    ),
    "mappo": (
        "foraging",
        {"algorithm": "mappo", "steps": 24 * 1024, "num_envs": 16, "horizon": 32, "minibatch": 256, "value_norm": "popart"},
    ),
    "self_play": (
        "connect4",
        {
            "algorithm": "self_play",
            "steps": 24 * 2048,
            "num_envs": 32,
            "horizon": 32,
            "minibatch": 512,
            "schedule": "constant",
            "entropy_final": None,
            "snapshot_every": 4,
            "choose": "hard",
            "noise": 0.1,
        },
    ),
    "grpo": (
        "cartpole",
        {"algorithm": "grpo", "steps": 24 * 1200, "num_envs": 16, "horizon": 64, "minibatch": 512, "group_size": 8},
    ),
    "grpo_tokens": (
        "reverse",
        {"algorithm": "grpo", "steps": 24 * 64, "num_envs": 64, "minibatch": 32, "reference_coef": 0.05},
    ),
    "token_ppo": ("reverse", {"algorithm": "token_ppo", "steps": 24 * 64, "num_envs": 64, "minibatch": 32}),
}
"""name -> environment and settings; at least 20 updates each"""

SEED, UPDATES = 7, 24
KEPT = Path(__file__).with_suffix(".json")


def play(name: str, folder: Path) -> list[dict[str, float]]:
    """Run the case ``name`` in ``folder``. Returns the lines of its ``metrics.jsonl``."""
    env, settings = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fugu.train(env, runs=folder, seed=SEED, threads=1, **{"log.board": "off", **settings})
    return run.metrics()[:UPDATES]


def digest(rows: list[dict[str, float]], name: str) -> str:
    """A hash of every number to its last bit, without those that did not exist when the digests were made.

    ``steps`` counted the rows that were learned from then. In self-play these are fewer than those that were played.
    """
    told = [dict(row) for row in rows]
    for row in told:
        learned = row.pop("learned", row["steps"])
        row.pop("score", None)
        if name == "self_play":
            row["steps"] = int(learned)
    return hashlib.sha256("\n".join(json.dumps(row) for row in told).encode()).hexdigest()[:16]


def arithmetic() -> str:
    """A hash of what this machine makes of some sums. Libraries choose kernels by the processor, and these round differently: where
    this differs, no training can be expected to be the same to the bit."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for rows, inputs, outputs in ((512, 4, 64), (512, 64, 64), (256, 64, 3), (2048, 64, 64)):
        x, w = torch.randn(rows, inputs, generator=generator), torch.randn(inputs, outputs, generator=generator)
        found += [x @ w, (x @ w).tanh().exp().sum(0), torch.linalg.qr(w)[0], torch.log_softmax(x @ w, -1)]
    data = b"".join(part.contiguous().numpy().tobytes() for part in found)
    return hashlib.sha256(data).hexdigest()[:16]


if __name__ == "__main__":
    import sys

    names = sys.argv[1:] or list(CASES)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept["arithmetic"] = arithmetic()
    for case in names:
        with tempfile.TemporaryDirectory() as folder:
            lines = play(case, Path(folder))
        kept[case] = {"updates": len(lines), "digest": digest(lines, case), "first": lines[0]}
        print(case, len(lines), lines[-1]["updates"], kept[case]["digest"])
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
