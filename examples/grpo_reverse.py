"""Learn to write: python examples/grpo_reverse.py [--steps 19200]

A small transformer is shown a few examples of reversed digits, enough to be right about half of the time. Then GRPO lets it answer each
prompt eight times, and what was right becomes more likely. A mean return of 1 is perfect.
"""

import argparse
from pathlib import Path

import fugu
from fugu.envs.reverse import examples
from fugu.policy import PolicyConfig
from fugu.policy.transformer import make_transformer
from fugu.trainer.imitation import imitate, save_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150 * 128)
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()

    with fugu.vector.make("reverse", 1) as vec:
        policy = make_transformer(vec.observation_space, vec.action_space, PolicyConfig(net="transformer"), seed=0)
    losses = imitate(policy, *examples(4096), steps=100, batch=64, learning_rate=5e-4)
    print(f"imitation: {losses[0]:.2f} to {losses[-1]:.2f} nats per token")
    start = Path(arguments.runs) / "imitated.safetensors"
    start.parent.mkdir(parents=True, exist_ok=True)
    save_weights(policy, start)

    run = fugu.train(
        "reverse",
        algorithm="grpo",
        start=str(start),
        env_kwargs={"partial": 0.0},  # paid for whole answers alone
        num_envs=128,
        minibatch=64,
        steps=arguments.steps,
        runs=arguments.runs,
        board="off",
    )
    for when in (0, -1):
        print({name: round(run.metrics()[when][name], 3) for name in ("episode/return", "loss/zero_spread")})
    print(run.evaluate(episodes=500))


if __name__ == "__main__":
    main()
