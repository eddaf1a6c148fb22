"""What a critic that sees more is for: python examples/team.py [--steps 5120]

In ``hidden_bonus`` four agents are paid for playing the bit they see, plus a large bonus that depends on something no agent sees. A
critic that sees it takes the bonus out of the reward; to one that does not it is noise. Same agents, same settings otherwise.
"""

import argparse

import fugu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5120)
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()

    settings = {"algorithm": "mappo", "steps": arguments.steps, "runs": arguments.runs, "threads": 1, "board": "off"}
    for critic in ("state", "own"):
        run = fugu.train("hidden_bonus", critic=critic, **settings)
        score = run.metrics()[-1]["env/score"]
        print(f"critic sees {critic}: {score:.0%} of the answers are right; {run.evaluate(episodes=400)}")


if __name__ == "__main__":
    main()
