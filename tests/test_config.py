"""Configs as files: what is read back is what was written, or it is refused."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import typing

import numpy as np
import pytest

from fugu.algorithm.settings import KNOWN
from fugu.config import field_paths, field_type, override, to_toml
from fugu.errors import ConfigError
from fugu.trainer.config import TrainConfig, member, read_config

SETTINGS = {
    path: algorithm
    for algorithm in reversed(KNOWN)
    for path in field_paths(member(algorithm))
    if not dataclasses.is_dataclass(field_type(member(algorithm), path))
}
"""path -> an algorithm that has it: the first of them"""


def test_settings_of_an_environment_come_back_as_they_were(tmp_path):
    given = {
        "plain": [1, 2.5, True, 'text\n"quoted"'],
        "tuple": (1, (2, [3])),
        "nested": {"size": (5, 5), "a.b": {"names": ["x"], "empty": []}},
        "tables": [{"x": (1,)}, {}],
    }
    config = TrainConfig(env_kwargs=given)
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    again = read_config(file)
    assert again == config
    assert again.env_kwargs["tuple"] == (1, (2, (3,))) and again.env_kwargs["nested"]["size"] == (5, 5)


@pytest.mark.parametrize("value", [None, [None], {1: 2}, {"deep": [{1: 2}]}, {1, 2}, b"bytes", object()])
def test_a_setting_that_would_not_come_back_is_refused(value):
    with pytest.raises(ConfigError, match="env_kwargs"):
        to_toml(TrainConfig(env_kwargs={"x": value}))


def test_a_file_that_was_cut_off_is_refused_wherever_that_was(tmp_path):
    lines = to_toml(TrainConfig()).splitlines(keepends=True)
    file = tmp_path / "config.toml"
    for end in range(1, len(lines)):
        file.write_text("".join(lines[:end]))
        with pytest.raises(ConfigError, match=r"config.toml does not end with '# end'"):
            read_config(file)
    file.write_text("".join(line for line in lines if not line.startswith("beta1")))
    assert read_config(file) == TrainConfig()  # of a version that had no such setting


@pytest.mark.parametrize(
    ("line", "changed", "said"),
    [
        ('schedule = "linear"', 'schedule = "step"', "optimizer.schedule='step' must be one of constant, linear, cosine"),
        ('schedule = "linear"', "schedule = 3", "optimizer.schedule=3 must be one of constant, linear, cosine"),
        ("beta1 = 0.9", 'beta1 = "a"', "optimizer.beta1='a' must be a number"),
        ("epochs = 1", "epoch = 1", "there is no setting epoch. Did you mean 'epochs'"),
        ("hidden = [64, 64]", "hidden = 64", "policy.hidden=64 must be a list, such as [64]"),
    ],
)
def test_a_file_with_a_wrong_value_is_named_with_it(tmp_path, line, changed, said):
    file = tmp_path / "config.toml"
    text = to_toml(TrainConfig())
    assert line in text
    file.write_text(text.replace(line, changed))
    with pytest.raises(ConfigError) as error:
        read_config(file)
    assert str(error.value).startswith(f"{file}: {said}")


@pytest.mark.parametrize("path", SETTINGS, ids=".".join)
def test_every_setting_refuses_what_is_of_another_kind_and_says_its_name(path):
    config = TrainConfig(algorithm=SETTINGS[path])
    hint = field_type(type(config), path)
    kinds = {hint, typing.get_origin(hint), *typing.get_args(hint)}
    wrong = [object(), {1: 2}, b"", 1.5 if float not in kinds else "1.5", [None]]
    for value in (*wrong, *([] if type(None) in kinds else [None])):
        with pytest.raises(ConfigError, match=f"{path[-1]}=.* must be "):
            override(config, {".".join(path): value})
    if typing.Literal in {typing.get_origin(part) for part in (hint, *typing.get_args(hint))}:
        with pytest.raises(ConfigError, match="must be |Known: "):
            override(config, {".".join(path): "nonsense"})


def test_numbers_of_numpy_and_lists_are_taken_for_what_they_are():
    config = override(TrainConfig(), {"steps": np.int64(5), "gamma": np.float32(0.5), "hidden": np.array([8]), "seed": 3.0})
    assert (config.steps, config.ppo.gamma, config.policy.hidden, config.seed) == (5, 0.5, (8,), 3)


def test_a_file_is_utf8_in_any_locale(tmp_path):
    code = (
        "import sys, pathlib; from fugu.config import to_toml; from fugu.files import write\n"
        "from fugu.trainer.config import TrainConfig, read_config\n"
        "path, config = pathlib.Path(sys.argv[1]), TrainConfig(env='\\u00fc')\n"
        "write(path, to_toml(config)); assert read_config(path) == config"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    file = tmp_path / "config.toml"
    done = subprocess.run([sys.executable, "-c", code, str(file)], env={**os.environ, **plain}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'env = "\u00fc"' in file.read_text(encoding="utf-8")


def test_a_name_that_is_not_unicode_is_refused():
    with pytest.raises(ConfigError, match="cannot be written to a run's config.toml: it is not Unicode"):
        to_toml(TrainConfig(env=os.fsdecode(b"\xff.py")))
