"""Learning from recorded episodes: what was asked for and what was achieved, and beside d3rlpy on the same episodes.

python benchmarks/offline.py data                          # record the mixtures that the others read; once
python benchmarks/offline.py cartpole pendulum             # Decision Transformer, behaviour cloning, IQL, TD3+BC, over the seeds
python benchmarks/offline.py peer speed --peer PYTHON      # beside d3rlpy, with the Python of an environment that has it

The mixtures are of one policy's episodes with several amounts of noise and, for Pendulum, of earlier checkpoints of it. All scores are
those of the last weights. Times are CPU seconds of one thread: the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import harness

import fugu
from fugu.config import override
from fugu.data import open as open_data
from fugu.native import set_threads
from fugu.presets import preset
from fugu.run.player import Player
from fugu.run.record import record
from fugu.run.run import Run
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.interrupt import Interrupt

FOLDER = Path("runs/offline")
EPISODES = 20
PEER = Path(__file__).parent / "offline_peer.py"
NOISE = (0.0, 0.25, 0.5, 0.75, 1.0)
MIXTURES: dict[str, dict[str, Any]] = {
    "cartpole": {"env": "CartPole-v1", "algorithm": "ppo", "train": {"steps": 60_000}, "checkpoints": [-1]},
    "pendulum": {
        "env": "Pendulum-v1",
        "algorithm": "sac",
        "train": {"steps": 8_000, "checkpoint.every": 125, "checkpoint.keep": 100},
        "checkpoints": [1, -1],
    },
}
"""mixture -> what played it; checkpoints by their order"""


def mixture(name: str) -> Path:
    """Train what plays, and record 200 episodes of it with noise."""
    what, path = MIXTURES[name], FOLDER / name
    if path.exists():
        return path
    config = override(preset(what["env"], algorithm=what["algorithm"]), {"threads": 1, "log.board": "off", **what["train"]})
    run = fugu.train(config=config, runs=FOLDER / "runs")
    steps = checkpoint.steps(run.folder.checkpoints)
    record(run, path, episodes=200, noise=NOISE, checkpoints=[steps[i] for i in what["checkpoints"]], num_envs=20, seed=1)
    return path


def learned(data: Path, algorithm: str, steps: int, seed: int, **changes: Any) -> tuple[Run, float]:
    """Train with the settings of the preset. Returns the run and the CPU seconds that it took."""
    config = override(
        preset(str(data), algorithm=algorithm), {"steps": steps, "seed": seed, "threads": 1, "log.board": "off", **changes}
    )
    start = time.process_time()
    return fugu.train(config=config, runs=FOLDER / "runs"), time.process_time() - start


def achieved(run: Run, target: float | None = None) -> float:
    with Player(run, num_envs=EPISODES, seed=1000) as player:
        if target is not None:
            player.ask(target)
        return player.evaluate(EPISODES, greedy=True).mean


def learning(name: str, options: argparse.Namespace) -> dict[str, Any]:
    data = open_data(mixture(name))
    targets = np.percentile(data.returns, [5, 25, 50, 75, 95, 100]).tolist()
    found: dict[str, Any] = {
        "env": MIXTURES[name]["env"],
        "episodes": data.episodes,
        "rows": data.steps,
        "returns": {"mean": float(data.returns.mean()), "best": float(data.returns.max()), "targets": targets},
        "updates": {"dt": options.updates, "others": options.others},
        "dt_settings": options.dt,
        "seeds": [],
    }
    for seed in range(options.seeds):
        dt, seconds = learned(mixture(name), "dt", options.updates, seed, **options.dt)
        got = [achieved(dt, target) for target in targets]
        one: dict[str, Any] = {
            "dt": {"achieved": got, "correlation": float(np.corrcoef(targets, got)[0, 1]), "cpu_seconds": seconds}
        }
        others = {"bc": {}, "bc_top": {"bc.top": 0.1}, "iql": {}, **({"td3bc": {}} if name == "pendulum" else {})}
        for label, changes in others.items():
            run, seconds = learned(mixture(name), label.partition("_")[0], options.others, seed, **changes)
            one[label] = {"achieved": achieved(run), "cpu_seconds": seconds}
        found["seeds"].append(one)
        print(json.dumps(one), file=sys.stderr, flush=True)
    means = {label: float(np.mean([one[label]["achieved"] for one in found["seeds"]])) for label in one if label != "dt"}
    curve = np.array([one["dt"]["achieved"] for one in found["seeds"]])
    return {**found, "summary": {"dt": curve.mean(0).tolist(), "dt_spread": curve.std(0).tolist(), **means}}


# --- beside d3rlpy ---


def episodes_for_peer(name: str) -> Path:
    """Write the episodes of a mixture as plain arrays, which the other interpreter reads."""
    data, path = open_data(mixture(name)), FOLDER / f"{name}.npz"
    columns = {each: [] for each in ("obs", "action", "reward", "terminated")}
    for number in range(data.episodes):
        rows = data.episode(number)
        for each, parts in columns.items():
            parts.append(rows[each][: data.lengths[number]])
    np.savez(path, lengths=data.lengths, **{each: np.concatenate(parts) for each, parts in columns.items()})
    return path


def peer(options: argparse.Namespace) -> dict[str, Any]:
    """Learn from the Pendulum mixture with equal updates, batches and networks on both sides."""
    path, found = episodes_for_peer("pendulum"), {"updates": options.others, "fugu": {}, "d3rlpy": {}}
    for algorithm in ("iql", "td3bc"):
        ours, theirs = [], []
        for seed in range(options.seeds):
            run, seconds = learned(mixture("pendulum"), algorithm, options.others, seed)
            ours.append({"achieved": achieved(run), "cpu_seconds": seconds})
            theirs.append(_peer(options, "learn", algorithm, path, options.others, seed))
            print(algorithm, ours[-1], theirs[-1], file=sys.stderr, flush=True)
        found["fugu"][algorithm], found["d3rlpy"][algorithm] = ours, theirs
    return found


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Time updates by turns: CPU milliseconds each, with the sizes of the literature, and the matrix products alone."""
    path, found = episodes_for_peer("pendulum"), {}
    for algorithm, updates in (("dt", 8), ("iql", 200), ("td3bc", 200)):
        contestants = {
            "fugu": lambda algorithm=algorithm, updates=updates: _ours(algorithm, updates),
            "d3rlpy": lambda algorithm=algorithm, updates=updates: _peer(options, "time", algorithm, path, updates, 0)["ms"],
            "products": lambda algorithm=algorithm: products(algorithm),
        }
        results = harness.alternate(contestants, options.repeats)
        found[algorithm] = {
            "ms": harness.summaries(results),
            **harness.ratios(results, [("d3rlpy", "fugu"), ("products", "fugu")]),
        }
        print(algorithm, json.dumps(found[algorithm]), file=sys.stderr, flush=True)
    return found


def _ours(algorithm: str, updates: int) -> float:
    """Return the CPU milliseconds of an update on the one loop: drawing rows, losses, gradients and steps of the optimizer."""
    config = override(preset(str(mixture("pendulum")), algorithm=algorithm), {"threads": 1, "steps": 10**9})
    trainer = make_trainer(config)
    trainer.start()
    set_threads(1)
    torch.set_num_threads(1)
    trainer.engine.run(Interrupt())
    start = trainer.steps, time.process_time()
    while trainer.steps < start[0] + updates:
        trainer.engine.run(Interrupt())
    spent = (time.process_time() - start[1]) / (trainer.steps - start[0]) * 1000
    trainer.close()
    return spent


def _peer(options: argparse.Namespace, what: str, algorithm: str, path: Path, updates: int, seed: int) -> dict[str, float]:
    words = [options.peer, "-W", "ignore", PEER, what, algorithm, path, str(updates), str(seed)]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def products(algorithm: str) -> float:
    """Return the CPU milliseconds of the matrix products that an update cannot do without, as torch multiplies.

    Forward, and backward for weights and inputs; of the inputs of first layers no gradient is asked for. The last layer of a Decision
    Transformer computes queries, outcome and what follows for one token in three.
    """
    torch.set_num_threads(1)
    todo: list[tuple[int, int, int, int]] = []  # rows, inner, outer, times
    if algorithm == "dt":
        width, tokens, third = 128, 64 * 60, 64 * 20
        for layer in range(3):
            rest = third if layer == 2 else tokens
            todo += [(rest, width, width, 3), (tokens, width, 2 * width, 3), (rest, width, width, 3)]
            todo += [(rest, width, 4 * width, 3), (rest, 4 * width, width, 3)]
    else:
        hidden = [(256, 256, 256, 1)]
        critic, policy = [(256, 4, 256, 1), *hidden, (256, 256, 1, 1)], [(256, 3, 256, 1), *hidden, (256, 256, 1, 1)]
        learns = lambda layers, copies=1: [(r, i, o, copies * (2 if k == 0 else 3)) for k, (r, i, o, _) in enumerate(layers)]  # noqa: E731
        if algorithm == "iql":
            twice = [(512, i, o, 1) for _, i, o, _ in policy]
            todo = learns(critic, 2) + [(r, i, o, 2) for r, i, o, _ in critic] + learns(policy) + twice
            todo += [(r, i, o, 2 if k == 0 else 3) for k, (r, i, o, _) in enumerate(policy)]
        else:
            todo = learns(critic, 2) + [(r, i, o, 2) for r, i, o, _ in critic] + policy
            half = learns(policy) + [(r, i, o, 2) for r, i, o, _ in critic]
            todo += [(r, i, o, n / 2) for r, i, o, n in half]  # type: ignore[misc]
    spent = 0.0
    for rows, inner, outer, times in todo:
        a, b = torch.randn(rows, inner), torch.randn(inner, outer)
        a @ b
        start = time.process_time()
        for _ in range(4):
            a @ b
        spent += (time.process_time() - start) / 4 * times
    return spent * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="+", choices=["data", "cartpole", "pendulum", "peer", "speed"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=2_400, help="gradient steps of a Decision Transformer")
    parser.add_argument("--others", type=int, default=6_000, help="gradient steps of all others")
    parser.add_argument(
        "--small", action="store_true", help="a Decision Transformer of 2 layers, 64 wide, with 10 steps of context"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer", help="Python of an environment with d3rlpy")
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args()
    small = {"policy.width": 64, "policy.layers": 2, "horizon": 10, "minibatch": 640}
    options.dt = small if options.small else {}
    found: dict[str, Any] = {}
    for case in options.case:
        if case == "data":
            found["data"] = {name: open_data(mixture(name)).episodes for name in MIXTURES}
        elif case in MIXTURES:
            found[case] = learning(case, options)
        else:
            found[case] = {"peer": peer, "speed": speed}[case](options)
    harness.report("offline", found, options.out, add=True)


if __name__ == "__main__":
    main()
