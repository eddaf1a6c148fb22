"""Learn to write programs: python examples/coding_grpo.py [--steps 64000]

A small transformer is shown 128 solutions, enough to be right one time in three. Then GRPO lets it answer each task eight times: a
sandbox runs the programs, tests decide, and what passed becomes more likely. Held-out tasks combine operations that it never saw
together.
"""

import argparse

import torch

import fugu
from fugu.rollout.acting import Seen
from fugu.run.player import Player


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250 * 256)
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()

    run = fugu.train("coding", steps=arguments.steps, runs=arguments.runs, board="off")
    for when in (0, -1):
        print({name: round(run.metrics()[when][name], 3) for name in ("episode/return", "env/status/wrong_answer")})

    with Player(run, num_envs=64, env_kwargs={"held_out": True}) as player:
        print("held out:", player.evaluate(episodes=256))
        obs, _ = player.vec.reset(seed=5)
        rows = torch.from_numpy(obs), torch.from_numpy(player.vec.rows.first)
        acted = player.algorithm.act(Seen(*rows, greedy=True))
        tokenizer = player.vec.get_attr("tokenizer", envs=[0])[0]
        _, reward, *_ = player.vec.step(acted.env_action.numpy())
        prompts = player.vec.views(obs)["tokens"]
        for prompt, answer, passed in list(zip(prompts, acted.env_action, reward, strict=True))[:3]:
            print(f"\n{tokenizer.decode(prompt)}\n{tokenizer.decode(answer.tolist())}\n# {'passed' if passed else 'failed'}")


if __name__ == "__main__":
    main()
