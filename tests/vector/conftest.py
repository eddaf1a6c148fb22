"""Fixtures of the tests of vector environments."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """Environments put into the list are closed at the end."""
    envs: list[Any] = []
    yield envs
    for env in envs:
        env.close()
