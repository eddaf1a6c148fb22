"""A Ray cluster of this machine alone, started once for all tests here and ended after them. FUGU_RAY_ADDRESS names another to use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from fugu.vector.ray_cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray")
    before = signal.getsignal(signal.SIGTERM)
    address = os.environ.get("FUGU_RAY_ADDRESS")
    if address is not None:  # as a user's own script would
        import ray

        ray.init(address=address, log_to_driver=False)
        signal.signal(signal.SIGTERM, before)
    used = Cluster(None, 2)
    assert signal.getsignal(signal.SIGTERM) == before, "Ray's handler of SIGTERM must not stay"
    yield used
    used.leave()
