"""What V-trace and priority sampling bring: the same environments and seeds with and without each, everything else equal.

    python benchmarks/ablation.py --seeds 5 --out benchmarks/results/ablation.json

A batch is used four times, so that there is something to correct and to choose. Reported are the return of the final policy and the
mean return over the whole training, which says how fast it was learned; both over the seeds, with their spread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.learning import in_process, write

ENVS = {"pong": 1_500_000, "snake": 3_000_000, "acrobot": 500_000, "squared": 500_000}
"""environment -> steps, few enough that not all have finished learning"""
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "vtrace": {"vtrace": True},
    "priority": {"priority": 0.8},
    "both": {"vtrace": True, "priority": 0.8},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    labels, jobs = [], []
    for env, steps in ENVS.items():
        for variant, changes in VARIANTS.items():
            for seed in range(arguments.seeds):
                labels.append((env, variant))
                jobs.append((env, seed, {"steps": steps, "epochs": 4, **changes}, 100, None))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(in_process, jobs))
    table = {}
    for env in ENVS:
        for variant in VARIANTS:
            runs = [r for label, r in zip(labels, results, strict=True) if label == (env, variant) and "error" not in r]
            final = [float(r["mean_return"]) for r in runs]
            whole = [statistics.mean(r["curve"]) for r in runs]
            table[f"{env} {variant}"] = {"final": final, "whole": whole}
            print(
                f"{env:10} {variant:9} final {statistics.mean(final):9.2f} +- {statistics.stdev(final):7.2f}   "
                f"whole {statistics.mean(whole):9.2f} +- {statistics.stdev(whole):7.2f}   ({len(runs)} seeds)",
                flush=True,
            )
    if arguments.out:
        write("ablation", table, arguments.out)


if __name__ == "__main__":
    main()
