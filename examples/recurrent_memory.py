"""What a memory is for: python examples/recurrent_memory.py [--steps 1000000]

In ``memory`` three digits are shown, then must be repeated. A policy that sees only the present can do no better than guess: 0.5.
With a recurrent core it learns to remember; 1.0 is perfect.
"""

import argparse

import fugu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()

    for core in ("none", "lstm", "mingru"):
        run = fugu.train("memory", core=core, steps=arguments.steps, threads=1, runs=arguments.runs, board="off")
        print(f"core {core}: {run.evaluate(episodes=500)}")


if __name__ == "__main__":
    main()
