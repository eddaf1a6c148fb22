"""The remote index when things go wrong: no neighbours, a count of failures, and a key that goes nowhere else."""

from __future__ import annotations

import time

import pytest

from fugu.coding.memory import TurbopufferIndex
from fugu.errors import ConfigError
from tests.timing import in_time

from .server import KEY, FakeTurbopuffer


@pytest.fixture
def service():
    fake = FakeTurbopuffer()
    yield fake
    fake.close()


@pytest.fixture
def index(service, monkeypatch):
    monkeypatch.setenv("TURBOPUFFER_API_KEY", KEY)
    monkeypatch.setattr("fugu.coding.memory.turbopuffer._MOST", 1 << 20)
    made = TurbopufferIndex("tests", 2, url=service.url, timeout=0.3)
    made.upsert(["a", "b"], [[1, 0], [0, 1]], [{"x": 1}, {"x": 2}])
    assert [each.id for each in made.query([1, 0.1], 2)[0]] == ["a", "b"]
    return made


@pytest.mark.parametrize(
    "trouble",
    [
        500,
        503,
        429,
        400,
        401,
        302,
        "drop",
        "slow",
        b"not json",
        b"[]",
        b"{}",
        b'{"rows": [{"id": "a"}]}',
        b'{"rows": [{"id": "a", "$dist": "x"}]}',
        b'{"rows": [{"id": "a", "$dist": NaN}]}',
        b'{"rows": 3, "aggregations": 3}',
        b"[" * 100_000,
        b"x" * (2 << 20),
    ],
    ids=lambda t: str(t)[:30],
)
def test_trouble_gives_no_neighbours_and_is_counted(service, index, trouble):
    service.trouble = [trouble] * 2
    start = time.monotonic()
    assert index.query([1, 0], 2) == [[]]
    assert index.failures == 1 and index.last_failure and KEY not in index.last_failure
    in_time(time.monotonic() - start, 2)
    service.trouble = [trouble] * 2
    assert index.count() == 0 and index.failures == 2
    service.trouble = []
    assert [each.id for each in index.query([1, 0], 1)[0]] == ["a"] and index.failures == 2


def test_writes_that_fail_are_counted_and_do_not_raise(service, index):
    service.trouble = [500] * 4
    index.upsert(["c"], [[1, 1]])
    index.delete(["a"])
    assert index.failures == 2 and index.count() == 2


def test_passing_trouble_is_tried_again(service, index):
    service.trouble = [503]
    assert len(index.query([1, 0], 2)[0]) == 2 and index.failures == 0


def test_a_refusal_is_not_tried_again(service, index):
    service.trouble = [400, 400]
    before = len(service.requests)
    index.query([1, 0])
    assert len(service.requests) == before + 1


def test_nobody_at_home(service, index):
    service.close()
    assert index.query([[1, 0], [0, 1]]) == [[], []] and index.failures == 2


def test_a_namespace_that_was_never_written_is_empty(service, index, monkeypatch):
    other = TurbopufferIndex("other", 2, url=service.url)
    assert other.count() == 0 and other.query([1, 0]) == [[]] and other.failures == 0


def test_the_key_comes_from_the_variable_that_is_named(service, monkeypatch):
    monkeypatch.delenv("TURBOPUFFER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="the environment variable TURBOPUFFER_API_KEY is not set"):
        TurbopufferIndex("tests", 2, url=service.url)
    monkeypatch.setenv("OTHER", "wrong")
    index = TurbopufferIndex("tests", 2, key_variable="OTHER", url=service.url)
    assert index.query([1, 0]) == [[]] and index.last_failure == "HTTP status 401"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": "http://example.com"}, "must begin with https"),
        ({"namespace": "a/b"}, "namespace 'a/b'"),
        ({"metric": "dot"}, "no metric 'dot'; it has cosine and euclidean"),
    ],
)
def test_settings_that_cannot_work_are_refused(monkeypatch, settings, says):
    monkeypatch.setenv("TURBOPUFFER_API_KEY", KEY)
    with pytest.raises(ConfigError, match=says):
        TurbopufferIndex(**{"namespace": "tests", "dim": 2} | settings)
