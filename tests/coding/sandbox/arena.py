"""Runs cases in a backend and judges what came of them: many at once, or one at a time with a look around after each."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence

import pytest

from fugu.coding.sandbox.contract import Backend, Call, Limits, Outcome, Program
from fugu.coding.sandbox.protections import gaps
from tests.coding.sandbox import cases_files, cases_language, cases_network, cases_processes, cases_resources
from tests.coding.sandbox.case import Case
from tests.coding.sandbox.world import World
from tests.timing import in_time

TOPICS = (cases_resources, cases_files, cases_network, cases_processes, cases_language)
CASES: list[Case] = [case for topic in TOPICS for case in topic.CASES]
BENIGN = Program(source=b"print(sum(map(int, input().split())))", stdin=b"1 2 3")


def program(case: Case, world: World) -> Program:
    def text(source: str | bytes) -> bytes:
        return world.fill(source).encode() if isinstance(source, str) else source

    limits = Limits(**case.limits)  # type: ignore[arg-type]
    partner = None
    if case.partner is not None:
        partner = Program(source=text(case.partner), calls=(Call("candidate"),), limits=limits)
    return Program(
        source=text(case.source),
        stdin=world.fill(case.stdin.decode()).encode(),
        calls=tuple(Call(name, args.encode()) for name, args in case.calls),
        partner=partner,
        limits=limits,
        profile=case.profile,  # type: ignore[arg-type]
    )


class Arena:
    """A backend that is open, in a world full of secrets."""

    def __init__(self, backend: Backend, world: World) -> None:
        self.backend, self.world = backend, world
        self.gaps = gaps(backend)
        # A program seen by every worker before the cases run: some of them look for it.
        before = Program(source=f"x = {world.canary!r}\nprint(input())".encode(), stdin=world.canary.encode())
        called = Program(source=b"def f(x):\n    return x", calls=(Call("f", json.dumps([world.canary]).encode()),))
        warm = self.run([before, called] * 4)
        assert {outcome.status for outcome in warm} == {"ok"}, warm[0]
        # a container takes a while to start and to be removed, which is not the program's time: an engine needs up to five seconds
        # alone to remove a fork bomb in gVisor, and more beside other work
        container = self.backend.name in ("docker", "podman")
        self.slack, self.removal = (5.0, 20.0) if container else (1.0, 1.0)
        world.settle(self.removal)

    def run(self, programs: Sequence[Program]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting = list(enumerate(programs))[::-1]
        until = time.monotonic() + 60 + sum(each.limits.wall_s for each in programs)
        while len(outcomes) < len(programs):
            while waiting and self.backend.room > 0:
                self.backend.submit(*waiting.pop())
            for ticket, outcome in self.backend.collect(1.0):
                assert ticket not in outcomes, "an outcome came twice"
                outcomes[ticket] = outcome
            assert time.monotonic() < until, f"no outcome for {sorted(set(range(len(programs))) - set(outcomes))}"
        return [outcomes[i] for i in range(len(programs))]

    def not_provided(self, case: Case) -> str | None:
        """Why this backend does not offer what the case is about, from its own declaration."""
        if case.needs in self.gaps:
            return f"{case.needs}: {self.gaps[case.needs]}"
        if case.processes and "processes" in self.gaps:
            return f"processes: {self.gaps['processes']}"
        if "refused(" in str(case.source) and platform.machine() != "x86_64":
            return "the numbers of its system calls are those of x86_64"
        return None

    def play(self, cases: Sequence[Case]) -> dict[str, tuple[Outcome, Outcome]]:
        """All of them at once, each followed by a benign program."""
        chosen = [case for case in cases if self.not_provided(case) is None]
        outcomes = self.run([each for case in chosen for each in (program(case, self.world), BENIGN)])
        return {case.id: (outcomes[2 * i], outcomes[2 * i + 1]) for i, case in enumerate(chosen)}

    def check(self, case: Case, outcome: Outcome, benign: Outcome) -> None:
        """Whether it ended as it should, and left the harness as it was."""
        assert outcome.status in case.statuses, outcome
        in_time(outcome.wall_s, case.limits.get("wall_s", Limits().wall_s) + 1.0)
        if case.stdout is not None:
            assert outcome.stdout == case.stdout
        if case.results is not None:
            assert outcome.results == case.results
        if case.fewer_results:
            assert len(outcome.results) < len(case.calls)
        assert len(outcome.results) <= len(case.calls)
        assert case.detail in outcome.detail
        assert outcome.detail.isprintable() and len(outcome.detail) <= 1000
        seen = b"\n".join((outcome.stdout, outcome.stderr, outcome.detail.encode(), *outcome.results)).decode(
            "utf-8", "replace"
        )
        for word in case.absent:
            assert self.world.fill(word) not in seen, seen
        limits = Limits(**case.limits)  # type: ignore[arg-type]
        assert len(outcome.stdout) <= limits.output_kb * 1024 and len(outcome.stderr) <= limits.output_kb * 1024
        assert (outcome.isolation, outcome.backend) == (self.backend.isolation, self.backend.name)
        assert self.backend.alive()
        assert (benign.status, benign.stdout) == ("ok", b"6\n"), benign

    def alone(self, case: Case) -> None:
        """The case by itself, then everything that must be as it was before."""
        reason = self.not_provided(case)
        if reason is not None:
            pytest.skip(f"{self.backend.name} at level {self.backend.isolation.level}: not provided: {reason}")
        before = self.world.record()
        start = time.monotonic()
        (outcome,) = self.run([program(case, self.world)])
        took = time.monotonic() - start
        (benign,) = self.run([BENIGN])
        self.check(case, outcome, benign)
        in_time(took, case.limits.get("wall_s", Limits().wall_s) + self.slack)
        left = self.world.unchanged(before, seconds=self.removal)
        assert left == {}, left
