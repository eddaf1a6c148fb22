"""What is declared as missing, from what the machine lacks."""

from __future__ import annotations

from fugu.coding.sandbox.config import FEATURES
from fugu.coding.sandbox.protections import BY, PROTECTIONS, without


def test_nothing_is_missing_at_the_best_level() -> None:
    assert without(()) == without(("landlock",)) == {}


def test_everything_but_what_needs_no_kernel_is_missing_without_any_feature() -> None:
    assert set(without(tuple(FEATURES))) == set(PROTECTIONS) - {"secrets"} == set(BY)


def test_processes_are_not_limited_where_they_can_be_started_but_not_counted() -> None:
    assert set(without(("process_limit",))) == {"processes"}
    assert "processes" not in without(("namespaces", "mounts", "process_limit"))  # where none can be started


def test_without_mounts_files_need_landlock() -> None:
    assert "files" not in without(("mounts",))
    assert without(("mounts", "landlock"))["files"] == "needs landlock or mounts"
