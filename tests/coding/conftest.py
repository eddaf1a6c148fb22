"""A sandbox for tests of what uses one, opened once per file: the fork backend, or plain processes where it cannot be had."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fugu.coding.sandbox import Program, Sandbox, SandboxConfig
from fugu.errors import SandboxError


class Recording(Sandbox):
    """Keeps what it was given."""

    programs: list[Program]

    def submit(self, program: Program) -> int:
        self.programs.append(program)
        return super().submit(program)


def opened(backend: str) -> Recording:
    level = 0 if backend == "subprocess" else 3
    sandbox = Recording(SandboxConfig(backend=backend, min_level=level, workers=2))  # type: ignore[arg-type]
    sandbox.programs = []
    return sandbox


@pytest.fixture(scope="module", params=["best", pytest.param("subprocess", marks=pytest.mark.slow)])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Recording]:
    try:
        made = opened("fork" if request.param == "best" else "subprocess")
    except SandboxError:
        made = opened("subprocess")
    with made:
        yield made
