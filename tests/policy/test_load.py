"""Networks of the user's own: found, built, tried, and refused with a message that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

import fugu
from fugu.errors import ConfigError, LoadError
from fugu.policy import Distribution, PolicyConfig, make_policy
from fugu.policy.load import find

OBS = gs.Dict(image=gs.Box(0, 255, (7, 7, 3), np.uint8), speed=gs.Box(-1, 1, (2,)))
HERE = __name__


class Net(nn.Module):
    """Reads the speed and the mean of the image."""

    def __init__(self, observation_space: gs.Space, action_space: gs.Space, core: str = "none", core_size: int = 0) -> None:
        super().__init__()
        self.hidden_size = 12
        self.first = nn.Linear(3, 12)
        self.policy = nn.Linear(core_size if core != "none" else 12, Distribution(action_space).size)
        self.value = nn.Linear(core_size if core != "none" else 12, 1)

    def encode(self, obs: Any) -> Tensor:
        brightness = obs["image"].float().flatten(1).mean(1, keepdim=True)
        return self.first(torch.cat([obs["speed"], brightness], -1)).tanh()

    def decode(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(hidden), self.value(hidden)


class TakesEverything(Net):
    def __init__(self, observation_space: gs.Space, action_space: gs.Space, **settings: Any) -> None:
        super().__init__(observation_space, action_space)
        self.settings = settings


class NarrowHidden(Net):
    def encode(self, obs: Any) -> Tensor:
        return super().encode(obs)[:, :7]


class WrongParams(Net):
    def decode(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return hidden, self.value(hidden)


class WrongValue(Net):
    def decode(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(hidden), hidden


class OnlyParams(Net):
    def decode(self, hidden: Tensor) -> Any:
        return self.policy(hidden)


class Raises(Net):
    def encode(self, obs: Any) -> Tensor:
        return self.first(obs["speed"])


class NoMethods(nn.Module):
    def __init__(self, observation_space: gs.Space, action_space: gs.Space) -> None:
        super().__init__()


class NoInit(nn.Module):
    pass


class RaisesAtOnce(Net):
    def __init__(self, observation_space: gs.Space, action_space: gs.Space, hidden: tuple[int, ...]) -> None:
        raise RuntimeError("no weights today")


class OneTooMany(Net):
    def __init__(self, observation_space: gs.Space, action_space: gs.Space, breadth: int) -> None:
        super().__init__(observation_space, action_space)


class NoModule:
    pass


class LayersInAList(Net):
    def __init__(self, observation_space: gs.Space, action_space: gs.Space) -> None:
        super().__init__(observation_space, action_space)
        self.__dict__.update(self._modules)
        self._modules.clear()


class NoGradient(Net):
    def decode(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return super().decode(hidden)


class Frozen(Net):
    """What is learned comes after the part without a gradient."""

    def encode(self, obs: Any) -> Tensor:
        return super().encode(obs).detach()


class OnlyEncodes(Net):
    """All of its weights are before the decoder."""

    def __init__(self, observation_space: gs.Space, action_space: gs.Space) -> None:
        super().__init__(observation_space, action_space)
        del self.policy, self.value

    def decode(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return hidden[:, :3], hidden[:, 3]


class Double(Net):
    def encode(self, obs: Any) -> Tensor:
        return super().encode(obs).double()


class NotANumber(Net):
    def decode(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(hidden), self.value(hidden / hidden.norm())


class WithStatistics(Net):
    def __init__(self, observation_space: gs.Space, action_space: gs.Space) -> None:
        super().__init__(observation_space, action_space)
        self.batch = nn.BatchNorm1d(12)

    def encode(self, obs: Any) -> Tensor:
        return self.batch(super().encode(obs))


def not_a_module(*_: Any) -> int:
    return 3


@pytest.mark.parametrize("core", ["none", "lstm", "mingru"])
def test_a_network_of_ones_own_steps_and_reads_sequences(core: Any) -> None:
    config = PolicyConfig(net=f"{HERE}:Net", core=core, core_size=8)
    policy = make_policy(OBS, gs.Discrete(3), config, seed=0)
    rows = torch.from_numpy(policy.obs_layout.zeros(4, 5))
    state = policy.initial_state(4)
    out = policy(rows, state, torch.zeros(4, 5, dtype=torch.bool))
    assert out.params.shape == (4, 5, 3) and out.value.shape == (4, 5)
    out = policy(rows[:, 0], state, torch.zeros(4, dtype=torch.bool))
    assert out.params.shape == (4, 3) and out.value.shape == (4,)


def test_a_network_gets_the_settings_it_names() -> None:
    policy = make_policy(OBS, gs.Discrete(3), PolicyConfig(net=f"{HERE}:TakesEverything", hidden=(5,)))
    assert policy.net.settings["hidden"] == (5,) and "net" not in policy.net.settings


def test_a_network_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my_policy.py"
    file.write_text(f"from {HERE} import Net as Base\nclass Mine(Base):\n    pass\n")
    policy = make_policy(OBS, gs.Discrete(3), PolicyConfig(net=f"{file}:Mine"))
    assert type(policy.net).__name__ == "Mine"


def test_the_trial_leaves_no_trace() -> None:
    policy = make_policy(OBS, gs.Discrete(3), PolicyConfig(net=f"{HERE}:WithStatistics"))
    assert policy.net.training and policy.net.batch.training
    assert int(policy.net.batch.num_batches_tracked) == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NarrowHidden", r"encode\(obs\) must be a float tensor \[2, 12\] for two rows.*got float32\[2, 7\]"),
        ("WrongParams", r"params of decode\(hidden\) must be a float tensor \[2, 3\].*got float32\[2, 12\]"),
        ("WrongValue", r"value of decode\(hidden\) must be a float tensor \[2\].*got float32\[2, 12\]"),
        ("OnlyParams", r"decode\(hidden\) must return \(params, value\), got Tensor"),
        ("Raises", r"encode failed on two rows \(\{'image': uint8\[2, 7, 7, 3\], 'speed': float32\[2, 2\]\}\): RuntimeError"),
        ("NoMethods", r"has no encode, decode, hidden_size"),
        ("not_a_module", r"must make a torch.nn.Module, got int"),
        ("NoModule", r"must be a torch.nn.Module; write class NoModule\(nn.Module\)"),
        ("NoInit", r"building it with \(observation_space, action_space\) failed: TypeError"),
        ("RaisesAtOnce", r"building it with \(.*, hidden=...\) failed: RuntimeError: no weights today"),
        ("OneTooMany", r"building it with .* failed: TypeError: .*'breadth'"),
        ("HERE", r"building it with .* failed: TypeError: 'str' object is not callable"),
        ("LayersInAList", r"has no weights to learn; keep its layers as attributes"),
        ("NoGradient", r"params of decode\(hidden\) carry no gradient"),
        ("Double", r"encode\(obs\) must be float32, got float64\[2, 12\]"),
        ("NotANumber", r"value of decode\(hidden\) must be finite for two rows of zeros, got nan"),
        ("Nett", r"has no 'Nett'. Did you mean 'Net'"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_at_once(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_policy(OBS, gs.Discrete(3), PolicyConfig(net=f"{HERE}:{name}"))


@pytest.mark.parametrize("name", ["Frozen", "OnlyEncodes"])
def test_a_network_may_learn_on_one_side_of_hidden_alone(name: str) -> None:
    for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
        with mode:
            make_policy(OBS, gs.Discrete(3), PolicyConfig(net=f"{HERE}:{name}"))


def test_names_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        make_policy(OBS, gs.Discrete(3), PolicyConfig(net=f"{tmp_path}/none.py:Net"))
    with pytest.raises(ConfigError, match="cannot import 'no_such_module'"):
        make_policy(OBS, gs.Discrete(3), PolicyConfig(net="no_such_module:Net"))


@pytest.mark.parametrize(
    ("source", "said", "line"),
    [
        ("import torch\nclass Net(\n", "SyntaxError: '(' was never closed", "line 2: class Net("),
        ("import nothing_like_it\n", "No module named 'nothing_like_it'", "line 1: import nothing_like_it"),
        ("def f():\n    return 1 / 0\nf()\n", "ZeroDivisionError: division by zero", "line 2: return 1 / 0"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_one_error_with_its_lines(source, said, line, tmp_path):
    (tmp_path / "broken_net.py").write_text(source)
    with pytest.raises(LoadError) as caught:
        find(f"{tmp_path}/broken_net.py:Net")
    text = str(caught.value)
    assert said in text and f"broken_net.py, {line}" in text and "importlib" not in text and "fugu/" not in text
    with pytest.raises(LoadError, match="broken_net.py"):
        fugu.vector.make(f"{tmp_path}/broken_net.py:Net", num_envs=2)


@pytest.mark.parametrize(("ends", "code"), [("sys.exit()", ""), ("sys.exit(3)", "3"), ("sys.exit('no licence')", "no licence")])
def test_a_file_that_exits_while_it_is_loaded_is_an_error_like_any_other(ends, code, tmp_path, monkeypatch):
    (tmp_path / "exits_at_once.py").write_text(f"import sys\n{ends}\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (f"{tmp_path}/exits_at_once.py", "exits_at_once"):
        with pytest.raises(LoadError) as caught:
            find(f"{name}:Net")
        assert f"SystemExit: {code}" in str(caught.value) and f"exits_at_once.py, line 2: {ends}" in str(caught.value)


def test_ctrl_c_while_a_file_is_loaded_is_still_ctrl_c(tmp_path, monkeypatch):
    (tmp_path / "interrupted_net.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (f"{tmp_path}/interrupted_net.py", "interrupted_net"):
        with pytest.raises(KeyboardInterrupt):
            find(f"{name}:Net")
