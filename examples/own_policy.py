"""A network of your own: python examples/own_policy.py [--steps 500000]

Any torch module with ``hidden_size``, ``encode`` and ``decode`` will do. Before training starts it is tried on two rows, and whatever
has a wrong shape is named.
"""

import argparse
import itertools

import torch
from torch import nn

import fugu
from fugu.policy import Distribution


class Net(nn.Module):
    """Policy and value see the observation and the sine of each of its numbers, through layers of their own."""

    hidden_size = 8  # features that encode returns

    def __init__(self, observation_space, action_space, hidden=(64, 64)):
        super().__init__()  # hidden is --policy.hidden; name more of the policy's settings to get them
        choices = Distribution(action_space).size  # what describes a distribution of actions: for Discrete(n), n logits
        self.policy, self.value = mlp(self.hidden_size, *hidden, choices), mlp(self.hidden_size, *hidden, 1)
        nn.init.orthogonal_(self.policy[-1].weight, 0.01)  # start with nearly equal probabilities

    def encode(self, obs):
        """obs [rows, 4], as the environment's space has it -> [rows, hidden_size]"""
        return torch.cat([obs, obs.sin()], -1)

    def decode(self, hidden):
        """hidden [rows, hidden_size] -> (parameters of the distribution [rows, choices], value [rows])"""
        return self.policy(hidden), self.value(hidden).squeeze(-1)


def mlp(*sizes):
    layers = [layer for i, o in itertools.pairwise(sizes) for layer in (nn.Linear(i, o), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()

    # On the command line: fugu train cartpole --policy examples/own_policy.py:Net --threads 1 --target 475 ...
    settings = {"epochs": 6, "minibatch": 2048, "learning_rate": 3e-3, "value_coef": 0.5, "normalize_value": True}
    settings["threads"] = 1  # a network this small gains nothing from more of torch's
    run = fugu.train("cartpole", net=f"{__file__}:Net", steps=arguments.steps, target=475, runs=arguments.runs, **settings)
    print(run.evaluate(episodes=100))


if __name__ == "__main__":
    main()
