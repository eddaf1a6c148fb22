"""Train, look at the result, and train on: python examples/train_cartpole.py [--steps 1000000]"""

import argparse

import fugu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()

    run = fugu.train("cartpole", steps=arguments.steps, target=475, runs=arguments.runs)
    print(run.path, "took", run.metrics()[-1]["steps"], "steps")

    result = run.evaluate(episodes=100)
    low, high = result.interval
    print(f"mean return {result.mean:.1f}, with 95% confidence between {low:.1f} and {high:.1f}")

    # The run goes on exactly where it stopped, with another goal: more steps, and no target to stop at.
    run = run.resume(steps=2 * arguments.steps, target=None)
    print(run.evaluate(episodes=100, greedy=True))


if __name__ == "__main__":
    main()
