"""``fugu list``: what can be made here, by group, with a line on each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fugu.cli.list_lines import NATIVE
from fugu.cli.main import main
from fugu.emulation.factory import factories
from fugu.emulation.native import names


def test_list_filters_and_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "cartpole"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "gymnasium classic_control" in lines and any(line.startswith("  CartPole-v1  ") for line in lines)
    assert all("cartpole" in line.lower() for line in lines if line.startswith("  "))
    assert main(["list", "--json", "Acrobot"]) == 0
    assert json.loads(capsys.readouterr().out) == {"fugu (native)": ["acrobot"], "gymnasium classic_control": ["Acrobot-v1"]}
    assert main(["list", "Cartpol-v1"]) == 1
    assert "CartPole-v1" in capsys.readouterr().err


def test_list_has_a_line_on_every_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert all(len(line) == 2 for line in lines)
    said = dict(lines)
    assert said["connect4"] == "four in a row, for two players; sees Box(6, 7), acts Discrete(7), 2 agents"
    assert said["CartPole-v1"] == "gymnasium.envs.classic_control.cartpole:CartPoleEnv, up to 500 steps"
    several = {name for name, text in said.items() if text.startswith("several agents")}
    assert several, "PettingZoo is installed for the tests"
    for name in several:
        factories(name, 1)  # what is listed can be imported
    assert list(NATIVE) == list(names())


def test_list_imports_nothing_heavy() -> None:
    code = "import sys\nfrom fugu.cli.main import main\nmain(['list', 'cartpole'])\n"
    code += "print([name for name in ('torch', 'pettingzoo', 'mpe2') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.endswith("[]\n")


def test_list_leaves_out_what_can_only_raise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert "HalfCheetah-v2" not in text  # registered, but its entry point only says that it is gone
