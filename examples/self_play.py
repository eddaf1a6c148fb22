"""A policy that learns connect4 against its earlier versions: python examples/self_play.py [--steps 5000000]"""

import argparse

import fugu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5_000_000)
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()
    run = fugu.train("connect4", algorithm="self_play", runs=arguments.runs, steps=arguments.steps)
    for row in run.metrics()[:: max(1, len(run.metrics()) // 10)]:
        print(f"{row['steps']:>10,} steps: rating {row['self_play/rating']:5.1f}, score {row['self_play/score']:.2f}")
    print(run.evaluate(20))  # against itself: the mean return of a game is 0


if __name__ == "__main__":
    main()
