"""Batches that no memory holds are refused, with sizes that it does hold."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import psutil
import pytest

from fugu import vector
from fugu.config import override
from fugu.errors import ConfigError
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.memory import check_memory, check_network


@pytest.mark.parametrize("env", ["cartpole", "snake", "connect4"])
@pytest.mark.parametrize("free", [3_000_000, 10**9])
@pytest.mark.parametrize("num_envs, horizon", [(2**24, 64), (3 * 10**7, 1), (16, 2**22)])
def test_what_is_suggested_is_accepted(env, free, num_envs, horizon, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    wanted = override(preset(env), {"num_envs": num_envs, "horizon": horizon, "minibatch": 4 * horizon})
    with vector.make(env, 1) as vec:
        with pytest.raises(ConfigError, match="of memory are free") as refused:
            check_memory(wanted, vec)
        words = re.findall(r"--(\S+) (\d+)", str(refused.value).split("try ")[1])
        smaller = dataclasses.replace(wanted, minibatch=None)
        for name, value in words:  # the minibatch comes last, when what it must fit is known
            smaller = override(smaller, {name: int(value)})
        check_memory(smaller, vec)
        assert smaller.minibatches(smaller.vector.num_envs * vec.spec.num_agents) >= 1


def test_a_batch_that_fits_is_not_refused(monkeypatch):
    config = override(preset("cartpole"), {"num_envs": 64, "horizon": 32, "minibatch": 2048})
    rows = 64 * 32 * (16 + 40)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=rows))
    make_trainer(config).close()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=rows - 1))
    with pytest.raises(ConfigError, match="num_envs=64 and horizon=32 make batches of 114.7 kB"):
        make_trainer(config)


def test_a_network_that_no_memory_holds_is_refused(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * (4 * 64 + 64 * 64 + 64 * 2)))
    with vector.make("cartpole", 1) as vec:
        check_network(override(preset("cartpole"), {"hidden": (64, 64)}), vec.spec)
        wider = override(preset("cartpole"), {"hidden": (64, 65)})
        with pytest.raises(ConfigError, match=r"4 inputs, layers \(64, 65\) and 2 outputs takes 72.7 kB to train"):
            check_network(wider, vec.spec)
        check_network(override(wider, {"policy.net": "file.py:Net"}), vec.spec)  # nobody knows how large that is
