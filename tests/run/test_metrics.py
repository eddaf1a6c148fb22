"""The table of metrics: complete, and strict about names that are not in it."""

from __future__ import annotations

import pytest

from fugu.errors import FuguError
from fugu.run.metrics import METRICS, PHASES, describe


def test_every_metric_has_a_definition_and_every_phase_a_metric() -> None:
    assert all(metric.definition for metric in METRICS.values())
    assert {f"time/{phase}" for phase in PHASES} <= set(METRICS)


def test_only_what_the_machine_decides_is_not_deterministic() -> None:
    varying = {name for name, metric in METRICS.items() if not metric.deterministic}
    assert varying == {name for name in METRICS if name.startswith(("time/", "system/", "nodes/"))}


def test_own_names_go_under_env_loss_and_user() -> None:
    assert describe("env/score").deterministic and describe("loss/cost").deterministic
    assert describe("loss/kl").unit == "nats"
    assert describe("user/mine").deterministic and not describe("time/user/mine").deterministic


@pytest.mark.parametrize("name", ["los/kl", "episode/retrun", "time/enf", "env/", "loss/", "kl", ""])
def test_other_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(FuguError, match="there is no metric .*under env/, loss/ or user/"):
        describe(name)


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(FuguError, match="Did you mean 'episode/return'"):
        describe("episode/retrun")
