"""What a run is made of, from its config."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fugu.algorithm.parts.fused import FusedSurrogate
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.fuse import fuse
from fugu.trainer.interrupt import Interrupt
from tests.trainer.test_loop import BASE
from tests.trainer.test_saving import trainer_of

NET = """
from torch import nn
class Net(nn.Module):
    hidden_size = 16
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.5))
        self.policy, self.value = nn.Linear(16, 2), nn.Linear(16, 1)
    def encode(self, obs):
        return self.encoder(obs)
    def decode(self, hidden):
        return self.policy(hidden), self.value(hidden)
"""


def test_a_network_is_not_random_in_training(tmp_path):
    """With dropout, or with statistics of the minibatch, the policy that learns would not be the one that acted."""
    (tmp_path / "net.py").write_text(NET)
    policy = dataclasses.replace(BASE.policy, net=f"{tmp_path}/net.py:Net", normalize_observation=False)
    with trainer_of(dataclasses.replace(BASE, policy=policy, minibatch=None, epochs=1)) as trainer:
        metrics = trainer.update(Interrupt())
        assert metrics["loss/kl"] == pytest.approx(0, abs=1e-6) and metrics["loss/clip_fraction"] == 0


def test_a_gpu_without_tf32_is_not_given_kernels_that_need_it(monkeypatch):
    from fugu.errors import ConfigError
    from fugu.gpu import emulation, use
    from fugu.trainer.precision import check_precision

    old, new = (7, 5), (8, 0)
    config = dataclasses.replace(preset("cartpole"), device="cuda", precision="tf32")
    card = torch.device("cuda")
    of_card = use.has_tensor_cores
    with emulation():  # the network stays on the CPU: only the card's age is asked for
        trainer = make_trainer(preset("cartpole"))
        algorithm, plain = trainer.algorithm, trainer.algorithm.surrogate.plain
        monkeypatch.setattr(use, "has_tensor_cores", lambda _: of_card(card))
        for capability in (old, new):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
            algorithm.device, algorithm.surrogate = card, plain
            fuse(algorithm, config, trainer.source.vec)
            assert isinstance(algorithm.surrogate, FusedSurrogate) == (capability == new)
    trainer.close()
    check_precision("tf32", card)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: old)
    with pytest.raises(ConfigError, match="precision=tf32 needs a GPU of compute capability 8.0"):
        check_precision("tf32", card)
    check_precision("auto", card)
