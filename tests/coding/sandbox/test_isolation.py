"""The isolation and abuse cases in the default backend at its best level, all at once, each beside a benign program; and that the
list is complete. ``test_conformance.py`` runs them one at a time and in every backend.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fugu.coding.sandbox.contract import Limits, Outcome, Program
from tests.coding.sandbox import test_cross_run, test_cross_run_faults
from tests.coding.sandbox.arena import BENIGN, CASES, Arena
from tests.coding.sandbox.backends import arena
from tests.coding.sandbox.case import Case
from tests.coding.sandbox.cases_resources import FORKS


class Played:
    def __init__(self, opened: Arena) -> None:
        self.arena = opened
        before = opened.world.record()
        self.outcomes: dict[str, tuple[Outcome, Outcome]] = opened.play(CASES)
        self.left = opened.world.unchanged(before, seconds=3.0)


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    with arena("fork", in_flight=12) as opened:
        yield Played(opened)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_hostile_program_among_others_is_contained(played: Played, case: Case) -> None:
    reason = played.arena.not_provided(case)
    if reason is not None:
        pytest.skip(f"not provided: {reason}")
    played.arena.check(case, *played.outcomes[case.id])


def test_nothing_is_left_after_all_of_them(played: Played) -> None:
    assert played.left == {}


def test_fork_bombs_leave_a_program_beside_them_alone(played: Played) -> None:
    limits = Limits(cpu_s=0.5, wall_s=0.8, processes=16)
    bomb = Program(source=FORKS.encode(), limits=limits, profile="program")
    first, benign, second = played.arena.run([bomb, BENIGN, bomb])
    assert (benign.status, benign.stdout) == ("ok", b"6\n")
    assert {first.status, second.status} <= {"time_limit", "runtime_error"}


# without harm where they succeed
TEETH = """
18-million 23-secrets 23-passwd 26-links 36-tcp 36-udp 36-ipv6 36-unix 36-abstract 36-netlink 36-socketpair 37-loopback-http
39-sysv-shm 39-posix-shm 42-kills 43-other-processes 55-fresh-not-in-compute
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="some of them only succeed as root")
def test_the_cases_fail_where_nothing_stops_them() -> None:
    """Else they would prove nothing."""
    chosen = [case for case in CASES if case.id in TEETH.split()]
    assert len(chosen) == len(TEETH.split())
    with arena("subprocess", workers=4) as opened:
        opened.gaps = {}
        outcomes = opened.play(chosen)
        for case in chosen:
            with pytest.raises(AssertionError, match="ESCAPED"):
                opened.check(case, *outcomes[case.id])


def test_every_case_of_the_list_is_there() -> None:
    """The list has 80; those that are not one program are tests of their own, which name their numbers."""
    tests = [*vars(test_cross_run).values(), *vars(test_cross_run_faults).values()]
    elsewhere = {number for test in tests for number in getattr(test, "numbers", ())}
    here = {2}  # above
    assert {case.number for case in CASES} | elsewhere | here == set(range(1, 81))


def test_ids_of_cases_are_unique() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
