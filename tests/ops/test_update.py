"""A whole update out of these kernels: the same bits every time, and from a CUDA graph as without one."""

from __future__ import annotations

import copy

import pytest
import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

from fugu.advantage import gae
from fugu.ops.adam import DeviceAdam
from fugu.ops.ppo_loss import ppo_loss, weighed
from fugu.policy import LSTM, MinGRU
from fugu.policy.distribution import Distribution

SEGMENTS, HORIZON, OBS = 33, 6, 5


class Learner:
    """One minibatch in fixed memory, and a step on it."""

    def __init__(self, core: nn.Module, device: torch.device, half: bool) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(HORIZON, SEGMENTS, *shape, generator=generator).to(device).transpose(0, 1)

        self.half, self.device = half, device
        self.distribution = Distribution(gs.Discrete(3)).to(device)
        self.core, self.head = copy.deepcopy(core).to(device), nn.Linear(32, 4).to(device)
        with torch.no_grad():
            self.head.weight.copy_(torch.linspace(-0.3, 0.3, 128, device=device).view(4, 32))
            self.head.bias.zero_()
        self.obs, self.value, self.reward, self.logprob = random(OBS), random(), random(), random() * 0.1 - 1.1
        self.ended, self.first, self.mask = random() > 1.5, random() > 1.5, random() > -1
        self.action = (random() > 0).long()
        self.bootstrap = torch.randn(SEGMENTS, generator=generator).to(device)
        self.state = torch.zeros(SEGMENTS, core.state_size, device=device)
        parameters = [*self.core.parameters(), *self.head.parameters()]
        self.adam = DeviceAdam(parameters, learning_rate=1e-2, betas=(0.9, 0.999), eps=1e-5, weight_decay=0.0)
        self.norm = torch.zeros((), device=device)

    def step(self) -> None:
        for p in self.adam.parameters:
            p.grad = None
        flags = (self.ended, torch.zeros_like(self.ended))
        advantage = gae(self.value, self.reward, *flags, self.bootstrap, gamma=0.99, lam=0.9, mask=self.mask)
        target = (advantage + self.value).t().flatten()
        advantage, weight = weighed(advantage.t().flatten(), self.mask.t().flatten(), normalize=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            out, _ = self.core.sequence(self.obs, self.state, self.first)
        params = self.head(out.float()).transpose(0, 1).flatten(0, 1)
        rows = {name: getattr(self, name).t().flatten() for name in ("action", "logprob", "value")}
        loss = ppo_loss(
            self.distribution, params[:, :3], params[:, 3], action=rows["action"][:, None], old_logprob=rows["logprob"],
            old_value=rows["value"], advantage=advantage, value_target=target, weight=weight, clip=0.2, value_coef=0.5,
            entropy_coef=0.01,
        )  # fmt: skip
        loss.total.backward()
        self.norm.copy_(self.adam.step(0.5))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "mingru"])
@pytest.mark.parametrize("half", [False, True])
def test_updates_repeat_to_the_bit_also_from_a_graph(device: torch.device, name: str, half: bool) -> None:
    torch.manual_seed(0)
    core = {"lstm": LSTM, "mingru": MinGRU}[name](OBS, 32)
    plain, again = (Learner(core, device, half) for _ in range(2))
    before = plain.adam.flat.clone()
    for _ in range(4):
        plain.step()
    if device.type == "cpu":
        for _ in range(4):
            again.step()
    else:
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            again.step()
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                again.step()
            for _ in range(3):
                graph.replay()
        torch.cuda.synchronize(device)
    assert plain.norm.isfinite() and plain.norm > 0
    assert plain.adam.state()["steps"] == again.adam.state()["steps"] == 4
    assert torch.equal(plain.adam.flat, again.adam.flat)
    assert (plain.adam.flat - before).abs().max() > 1e-2
