"""``fugu new policy FILE``: write a network to start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from fugu.cli.options import parse
from fugu.cli.starter import check_class, check_file, show_next, write_new


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a small network to start from: a torch module with encode and decode, for fugu train ENV --policy FILE:CLASS."""

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATH")]
    """File to write; an existing one is never touched"""
    name: str = "Net"
    """Name of the class"""


def main(argv: list[str]) -> int:
    """Write the file and show what to do with it."""
    options = parse(Options, "new policy", argv)
    path = check_file(options.path, ".py", "my_policy.py", "Python file")
    check_class(options.name, "Net")
    write_new(path, TEXT.replace("Net", options.name).replace("my_policy.py", path.name))
    own = f"fugu train cartpole --policy {path}:{options.name}"
    commands = [(own, "train it"), (f"{own} --policy.core lstm", "with a memory between encode and decode")]
    show_next(f"{path} with the class {options.name}", commands)
    return 0


TEXT = '''"""A network to start from, for any environment: fugu train cartpole --policy my_policy.py:Net. Make it your own.

Before the training starts it is tried on two rows; what has a wrong shape is named then.
"""

import math

import torch
from torch import nn

from fugu import Layout
from fugu.policy import Distribution
from fugu.policy.net import leaves


class Net(nn.Module):
    """Observation -> encode -> hidden -> (memory, with --policy.core lstm) -> decode -> what to do, and what it is worth."""

    def __init__(self, observation_space, action_space, hidden=(64, 64), core="none", core_size=128, **settings):
        super().__init__()  # settings: the other --policy.NAME options; name those you want as arguments
        inputs = sum(math.prod(leaf.shape) for leaf in Layout(observation_space).leaves)  # a Dict has several
        self.hidden_size = hidden[-1]  # needed: how many features encode returns
        layers = []
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.Tanh()]
            inputs = width
        self.layers = nn.Sequential(*layers)
        features = core_size if core != "none" else self.hidden_size  # what decode gets
        self.policy_head = nn.Linear(features, Distribution(action_space).size)  # Discrete(n): n logits; Box: mean and log std
        self.value_head = nn.Linear(features, 1)
        nn.init.orthogonal_(self.policy_head.weight, 0.01)  # start with nearly equal probabilities
        nn.init.zeros_(self.policy_head.bias)

    def encode(self, obs):
        """obs as the space has it, a tensor [rows, ...] or a dict or tuple of them -> hidden [rows, hidden_size]."""
        return self.layers(torch.cat([leaf.reshape(len(leaf), -1).float() for leaf in leaves(obs)], -1))

    def decode(self, hidden):
        """hidden [rows, features] -> (parameters of the action distribution [rows, size], value [rows])."""
        return self.policy_head(hidden), self.value_head(hidden).squeeze(-1)
'''
