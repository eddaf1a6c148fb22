"""Define what a backend that starts a process per program has to bring (``Launcher``), and a job in its boxes: one program, or
test code and the program it asks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from fugu.coding.sandbox import runner, shared, standins, values
from fugu.coding.sandbox.box import Box, Start
from fugu.coding.sandbox.contract import Isolation, Outcome, Program


class Launcher(Protocol):
    """Makes boxes of one kind."""

    name: str
    isolation: Isolation
    gaps: Mapping[str, str]
    """what these boxes do not give, by the names of ``protections``, and why"""

    def start(self, program: Program) -> Start:
        """Return the command for one box. OSError if it cannot be made."""
        ...

    def kill(self, start: Start) -> None:
        """End what ending the process would not."""
        ...

    def clear(self, start: Start) -> None:
        """Remove what the box left; its process is gone."""
        ...

    def why_not(self) -> str:
        """Return more words on why no box could be made, or none."""
        ...

    def close(self) -> None:
        """Close what is kept open for boxes: there will be no more of them."""
        ...


FIXED = {"PYTHONHASHSEED": "0"}
"""environment of the interpreter: the order of sets is the same in every run. The program itself does not see it"""


def interpreter(python: str) -> list[str]:
    """Return a command that runs the runner without needing a file in the box."""
    text = "".join(Path(str(each.__file__)).read_text() for each in (values, shared, standins, runner))
    text = re.sub(r"^from (__future__|fugu\b.*) import .*\n", "", text, flags=re.MULTILINE)
    return [python, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", "from __future__ import annotations\n" + text]


class Job:
    """A program, or test code and its candidate, each in a box."""

    def __init__(self, ticket: int, program: Program, launcher: Launcher) -> None:
        self.ticket, self.program, self.launcher = ticket, program, launcher
        self.boxes: list[Box] = []
        self.starts: list[Start] = []
        self.sent = 0
        partner = program.partner
        names = () if partner is None else tuple(call.function for call in partner.calls)
        try:
            self._open(program, names)
            if partner is not None:
                self._open(partner, ())
        except BaseException:
            self.close()
            raise
        self._next_call()

    def _open(self, program: Program, candidates: tuple[str, ...]) -> None:
        self.starts.append(self.launcher.start(program))
        self.boxes.append(Box(program, self.starts[-1], candidates))

    def _next_call(self) -> None:
        if self.program.calls and self.sent < len(self.program.calls):
            call = self.program.calls[self.sent]
            self.boxes[0].send(b"C", json.dumps([call.function, call.args.decode("utf-8", "replace")]).encode())
            self.sent += 1
        elif self.program.calls:
            self.boxes[0].send(b"E")

    def advance(self) -> None:
        """Read what the boxes have said since, and tell them what follows from it."""
        first = self.boxes[0]
        if self.program.partner is None:
            if len(first.results) == self.sent and self.program.calls and first.begun and not first.finished:
                self._next_call()
                first.finished = self.sent == len(self.program.calls) == len(first.results)
            return
        second = self.boxes[1]
        if first.questions and not second.asked and second.over:
            first.questions.clear()
            first.send(b"R", json.dumps({"detail": "it has ended"}).encode())
        elif first.questions and not second.asked:
            second.asked = True
            second.send(b"C", first.questions[0])
        elif second.asked and (second.results or second.over):
            second.asked = False
            first.questions.clear()
            answer = {"value": second.results.pop().decode("utf-8", "replace")} if second.results else {"detail": "it failed"}
            first.send(b"R", json.dumps(answer).encode())
        if first.over and not second.over and not second.finished:
            second.finished = True
            second.send(b"E")

    @property
    def deadline(self) -> float:
        return min((box.deadline for box in self.boxes if not box.over), default=0.0)

    def expire(self, now: float) -> None:
        for box, start in zip(self.boxes, self.starts, strict=True):
            if not box.over and now >= box.deadline:
                box.kill("time_limit" if box.begun else "internal_error")
                self.launcher.kill(start)

    def outcome(self) -> Outcome:
        outcomes = [box.outcome(self.launcher.isolation, self.launcher.name) for box in self.boxes]
        if len(outcomes) == 2 and outcomes[1].status not in ("ok", "runtime_error") and outcomes[0].status != "internal_error":
            return outcomes[1]  # the candidate ran into a limit: that is the news, not how the test code took it
        return outcomes[0]

    def close(self) -> None:
        for box in self.boxes:
            box.close()
        for start in self.starts:
            self.launcher.clear(start)
