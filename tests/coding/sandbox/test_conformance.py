"""The isolation and abuse cases, one at a time, in every backend that can run here; after each the harness must be as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.coding.sandbox.arena import CASES, Arena
from tests.coding.sandbox.backends import BACKENDS, arena
from tests.coding.sandbox.case import Case

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.fixture(scope="module", params=BACKENDS)
def opened(request: pytest.FixtureRequest) -> Iterator[Arena]:
    with arena(request.param) as opened:
        yield opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_hostile_program_is_contained(opened: Arena, case: Case) -> None:
    opened.alone(case)
