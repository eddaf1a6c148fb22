"""Configs as files: what is read back is what was written, or it is refused."""

from __future__ import annotations

import pytest

from fugu.config import from_toml, to_toml
from fugu.errors import ConfigError
from fugu.trainer.config import TrainConfig


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
    again = from_toml(TrainConfig, file)
    assert again == config
    assert again.env_kwargs["tuple"] == (1, (2, (3,))) and again.env_kwargs["nested"]["size"] == (5, 5)


@pytest.mark.parametrize("value", [None, [None], {1: 2}, {"deep": [{1: 2}]}, {1, 2}, b"bytes", object()])
def test_a_setting_that_would_not_come_back_is_refused(value):
    with pytest.raises(ConfigError, match="env_kwargs"):
        to_toml(TrainConfig(env_kwargs={"x": value}))
