"""Do the general settings learn on small budgets? Environments that none of them were tuned on, beside Stable-Baselines3's defaults.

python benchmarks/general.py --out benchmarks/results/general.json
python benchmarks/general.py FrozenLake-v1 --seeds 2 --work /tmp/general      # goes on with what is missing there

Both libraries train for the same steps in one process of one thread; a step is one action of one agent. Time is the CPU time of that
process (``time.process_time``), without imports and evaluations: what a quiet machine would show on a clock, whatever else this one
does. Final policies play 100 episodes, with actions drawn as in training and with seeds of their own. "At equal time" is
Stable-Baselines3 when it had used the CPU seconds that fugu needed for all of its steps: the policy after the first of its updates
that ended no earlier. Its rate is constant by default, so it is no worse off for being looked at early.

fugu: ``fugu.presets.general.general`` also where the environment has a preset by its id. Stable-Baselines3: ``PPO`` with its defaults
and one environment; ``MaskablePPO`` of sb3-contrib where actions are masked; ``CnnPolicy`` for pictures; agents as environments of
one policy where there are several, in batches of 2,048 rows as elsewhere.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
EPISODES = 100
BATCH = 2048
"""rows of a batch of Stable-Baselines3"""


@dataclass(frozen=True)
class Case:
    env: str
    steps: int
    kind: str


def _own(name: str) -> str:
    return f"{HERE / 'general_envs.py'}:{name}"


CASES = {
    "FrozenLake-v1": Case("FrozenLake-v1", 60_000, "tabular"),
    "CartPole-v1": Case("CartPole-v1", 20_000, "box"),
    "Acrobot-v1": Case("Acrobot-v1", 20_000, "box"),
    "Hopper-v5": Case("Hopper-v5", 20_000, "continuous"),
    "InvertedDoublePendulum-v5": Case("InvertedDoublePendulum-v5", 20_000, "continuous"),
    "Dodge": Case(_own("Dodge"), 12_000, "image"),
    "Knapsack": Case(_own("Knapsack"), 20_000, "masked"),
    "simple_spread_v3": Case("mpe2.simple_spread_v3:parallel_env", 24_000, "multi-agent"),
}


def train_fugu(name: str, seed: int, work: Path) -> dict[str, Any]:
    import fugu
    from fugu.config import override
    from fugu.presets.general import general

    case = CASES[name]
    settings = {"seed": seed, "steps": case.steps, "threads": 1, "log.board": "off", "vector.num_workers": 1}
    config = override(general(case.env, {}, 60.0), settings)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        run = fugu.train(config=config, runs=folder)
        seconds = time.process_time() - start
        found = run.evaluate(EPISODES, seed=1000 + seed)
        return {"return": found.mean, "seconds": seconds, "steps": run.metrics()[-1]["steps"]}


def train_sb3(name: str, seed: int, work: Path) -> dict[str, Any]:
    """Train, and keep the policy after every update with the CPU seconds used by then."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    class Keep(BaseCallback):
        spent = 0.0

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            before = time.process_time()
            kept.append((self.num_timesteps, before - start - self.spent, copy.deepcopy(self.model.policy.state_dict())))
            self.spent += time.process_time() - before

    kept: list[tuple[int, float, dict[str, Any]]] = []
    make_sb3(name, seed)
    start = time.process_time()
    model = make_sb3(name, seed)
    keep = Keep()
    model.learn(CASES[name].steps, callback=keep)
    keep._on_rollout_start()
    torch.save(kept, _kept(work, name, seed))
    return {"return": evaluated(model, name, seed), "seconds": kept[-1][1], "steps": kept[-1][0]}


def sb3_after(name: str, seed: int, work: Path, seconds: float) -> dict[str, Any]:
    """Evaluate the policy that Stable-Baselines3 had after these CPU seconds."""
    import torch

    kept = torch.load(_kept(work, name, seed), weights_only=False)
    steps, used, state = next((one for one in kept if one[1] >= seconds), kept[-1])
    model = make_sb3(name, seed)
    model.policy.load_state_dict(state)
    return {"return": evaluated(model, name, seed), "seconds": used, "steps": steps}


def _kept(work: Path, name: str, seed: int) -> Path:
    return work / f"{name}-{seed}.pt"


def make_sb3(name: str, seed: int) -> Any:
    from stable_baselines3 import PPO

    case, kind = CASES[name], PPO
    if case.kind == "masked":
        from sb3_contrib import MaskablePPO

        kind = MaskablePPO
    policy = "CnnPolicy" if case.kind == "image" else "MlpPolicy"
    rows = make_env(name)
    more = {"n_steps": BATCH // rows.num_envs} if case.kind == "multi-agent" else {}
    return kind(policy, rows, seed=seed, device="cpu", **more)


def make_env(name: str, count: int = 1) -> Any:
    """Return ``count`` environments of this case in the form of Stable-Baselines3; the agents of one where there are several."""
    import gymnasium
    from benchmarks import general_envs
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    case = CASES[name]
    if case.kind == "multi-agent":
        from benchmarks.general_rows import AgentRows
        from mpe2 import simple_spread_v3

        return AgentRows(simple_spread_v3.parallel_env())
    make = getattr(general_envs, name, None) or (lambda: gymnasium.make(case.env))
    return DummyVecEnv([lambda: Monitor(make())] * count)


def evaluated(model: Any, name: str, seed: int) -> float:
    if CASES[name].kind == "masked":
        from sb3_contrib.common.maskable.evaluation import evaluate_policy
    else:
        from stable_baselines3.common.evaluation import evaluate_policy

    env = make_env(name, 20)
    env.seed(1000 + seed)
    model.set_random_seed(1000 + seed)
    return float(evaluate_policy(model, env, EPISODES, deterministic=False, warn=False)[0])


JOBS = {"fugu": train_fugu, "sb3": train_sb3, "sb3_after": sb3_after}


def warm_up() -> None:
    """Let both libraries import what they import on first use, so that no run pays for it."""
    from stable_baselines3 import PPO

    import fugu

    with tempfile.TemporaryDirectory() as folder:
        fugu.train("CartPole-v1", steps=1, threads=1, num_workers=1, runs=folder, **{"log.board": "off"})
    PPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu").learn(64)


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    returns = [run["return"] for run in runs]
    seconds = statistics.median(run["seconds"] for run in runs)
    return {"median": statistics.median(returns), "min": min(returns), "max": max(returns), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=list(CASES), metavar="ENV", help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="instead of those of the table")
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--work", type=Path, help="folder that keeps what is done, for another call to go on from")
    parser.add_argument("--out", help="file for the results")
    arguments = parser.parse_args()
    if arguments.steps:
        CASES.update({name: replace(CASES[name], steps=arguments.steps) for name in arguments.envs})
    warnings.filterwarnings("ignore")
    warm_up()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        runs = played(arguments.envs, range(arguments.seeds), arguments.jobs, work)
    results = {}
    for name in arguments.envs:
        mine = {job: [run for run in runs if (run["job"], run["env"]) == (job, name)] for job in arguments.jobs}
        results[name] = {"kind": CASES[name].kind, "steps": CASES[name].steps}
        results[name] |= {job: {**summary(each), "runs": each} for job, each in mine.items()}
    from benchmarks.harness import report

    report("general", results, arguments.out)


def played(names: Sequence[str], seeds: Sequence[int], jobs: Sequence[str], work: Path) -> list[dict[str, Any]]:
    """Do all jobs whose result is not among the lines in ``work`` yet. Returns all results."""
    lines = work / "runs.jsonl"
    runs = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    for seed in seeds:
        for name in names:
            for job in jobs:
                mine = {run["job"]: run for run in runs if (run["env"], run["seed"]) == (name, seed)}
                if job in mine:
                    continue
                more = [mine["fugu"]["seconds"]] if job == "sb3_after" else []
                runs.append({"job": job, "env": name, "seed": seed, **JOBS[job](name, seed, work, *more)})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
                with lines.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
    wanted = {(name, seed, job) for name in names for seed in seeds for job in jobs}
    return [run for run in runs if (run["env"], run["seed"], run["job"]) in wanted]


if __name__ == "__main__":
    main()
