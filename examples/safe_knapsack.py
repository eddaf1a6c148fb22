"""Reward under a limit on cost: python examples/safe_knapsack.py [--steps 400000]

``knapsack_cmdp`` makes 20 offers, A (pays 2) or B (pays 0.5); each costs 1 to take. Whoever may spend 10 should take every A and leave
every B: return 20. PPO looks at no cost and takes all of them: return 25, cost 20.
"""

import argparse

import fugu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()
    common = {"steps": arguments.steps, "runs": arguments.runs, "threads": 1, "board": "off"}

    run = fugu.train("knapsack_cmdp", algorithm="ppo", **common)
    print(f"no limit: {run.evaluate(episodes=500)}")
    for limit in (10, 5):
        run = fugu.train("knapsack_cmdp", algorithm="safe_ppo", limit=(limit,), **common)
        price = run.metrics()[-1]["safe/lambda"]
        print(f"limit {limit}: {run.evaluate(episodes=500)}, price {price:.2f}")


if __name__ == "__main__":
    main()
