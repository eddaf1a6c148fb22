"""Impossible settings are refused before anything is built, with what to type instead."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fugu.errors import ConfigError
from fugu.policy import PolicyConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation": "rellu"}, r"activation='rellu' must be one of tanh, relu.*'relu'.*--policy.activation"),
        ({"core": "gru"}, r"core='gru' must be one of none, lstm, mingru"),
        ({"std": "fixed"}, r"std='fixed' must be one of free, state"),
        ({"hidden": (64, 0)}, r"hidden=0 must be a whole number of at least 1"),
        ({"hidden": 64}, r"hidden=64 must be a list of widths; type --policy.hidden 64 64"),
        ({"core_size": 1.5}, r"core_size=1.5 must be a whole number"),
        ({"core_layers": 2}, r"core_layers=2 needs core=mingru, got core=none"),
        ({"initial_std": 0.0}, r"initial_std=0.0 must be a number from"),
        ({"initial_std": float("nan")}, r"initial_std=nan must be a number from"),
        ({"embedding": True}, r"embedding=True must be a whole number"),
        ({"share": False, "core": "lstm"}, r"share=False .* core=lstm .*--policy.share true"),
        ({"net": "my_policy.py"}, r"net='my_policy.py' must be default, transformer, file.py:Net or module:Net"),
    ],
)
def test_impossible_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PolicyConfig(**settings)


def test_lists_of_widths_become_tuples() -> None:
    assert PolicyConfig(hidden=[32, 16]).hidden == (32, 16)  # type: ignore[arg-type]
    assert PolicyConfig(hidden=()).hidden == ()


def test_settings_need_no_torch() -> None:
    code = "import sys, fugu; fugu.policy.PolicyConfig(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
