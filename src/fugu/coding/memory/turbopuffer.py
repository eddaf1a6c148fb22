"""A remote index, shared between machines: a namespace of turbopuffer, spoken to over HTTPS (API version 2).

The key is read from the environment variable that is named, of this process; it never enters a sandbox, a message or a file. A remote
index is a help, not a need: where it does not answer there are no neighbours, nothing is raised, and ``failures`` counts on.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from fugu.coding.memory.contract import Metric, Neighbour, check_entries, check_metric, check_vectors
from fugu.coding.memory.filters import Attribute, Filter
from fugu.errors import ConfigError

_MOST = 16 << 20  # bytes of an answer
_METRICS = {"cosine": "cosine_distance", "euclidean": "euclidean_squared"}


class TurbopufferIndex:
    def __init__(
        self,
        namespace: str,
        dim: int,
        metric: Metric = "cosine",
        *,
        key_variable: str = "TURBOPUFFER_API_KEY",
        url: str = "https://gcp-us-central1.turbopuffer.com",
        timeout: float = 2.0,
        retries: int = 1,
    ) -> None:
        """Open an index of the service. ``timeout`` is in seconds, for one try; ``retries`` are of what may be a passing trouble."""
        check_metric(metric, dim)
        if metric not in _METRICS:
            raise ConfigError(f"turbopuffer has no metric {metric!r}; it has cosine and euclidean")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", namespace):
            raise ConfigError(f"namespace {namespace!r} must be 1 to 128 letters, digits, '-', '_' or '.'")
        self._key = os.environ.get(key_variable, "")
        if not self._key:
            raise ConfigError(f"the environment variable {key_variable} is not set; it should hold the key of turbopuffer")
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")):
            raise ConfigError(f"url={url!r} must begin with https://, or the key could be read on its way")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname or "", parts.port
        self._path = f"{parts.path.rstrip('/')}/v2/namespaces/{namespace}"
        self.dim, self.metric, self.timeout, self.retries = dim, metric, timeout, retries
        self.failures = 0
        """requests that were given up"""
        self.last_failure = ""

    def upsert(self, ids: Sequence[str], vectors: Any, attributes: Sequence[Mapping[str, Attribute]] | None = None) -> None:
        rows, plain = check_entries(ids, vectors, attributes, self.dim)
        written = {name: {"id": name, "vector": row.tolist(), **each} for name, row, each in zip(ids, rows, plain, strict=True)}
        if written:
            self._ask("", {"upsert_rows": list(written.values()), "distance_metric": _METRICS[self.metric]})

    def query(self, vectors: Any, top_k: int = 10, where: Filter | None = None) -> list[list[Neighbour]]:
        queries = check_vectors(vectors, self.dim)
        if not 1 <= top_k <= 10_000:
            raise ConfigError(f"top_k={top_k} must be from 1 to 10000")
        out: list[list[Neighbour]] = []
        for query in queries:
            wanted: dict[str, Any] = {"rank_by": ["vector", "ANN", query.tolist()], "top_k": top_k}
            wanted |= {"exclude_attributes": ["vector"]}
            if where is not None:
                wanted["filters"] = where.plain()
            out.append(self._neighbours(self._ask("/query", wanted))[:top_k])
        return out

    def delete(self, ids: Sequence[str] | None = None, *, where: Filter | None = None) -> None:
        if (ids is None) == (where is None):
            raise ConfigError("delete needs either ids or where")
        if where is not None:
            self._ask("", {"delete_by_filter": where.plain()})
        elif ids:
            self._ask("", {"deletes": list(ids)})

    def count(self) -> int:
        """Count the entries; 0 where that cannot be found out."""
        answer = self._ask("/query", {"aggregate_by": {"count": ["Count"]}})
        if answer is None:
            return 0
        try:
            return int(answer["aggregations"]["count"])
        except (KeyError, TypeError, ValueError):
            self._failed("an answer without a count")
            return 0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: the service keeps what was upserted."""

    def _neighbours(self, answer: Any) -> list[Neighbour]:
        """Read neighbours from an answer that may be anything."""
        if answer is None:
            return []
        try:
            out = []
            for row in answer["rows"]:
                distance = float(row["$dist"])
                if not math.isfinite(distance):
                    raise ValueError("a distance that is no number")
                score = 1.0 - distance if self.metric == "cosine" else -math.sqrt(max(distance, 0.0))
                attributes = {str(k): v for k, v in row.items() if k not in ("id", "vector") and not k.startswith("$")}
                out.append(Neighbour(str(row["id"]), score, attributes))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._failed(f"an answer that cannot be read: {error!r:.100}")
            return []
        return sorted(out, key=lambda each: (-each.score, each.id))

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer, or None."""
        data = json.dumps(body).encode()
        for attempt in range(1 + self.retries):
            if attempt:
                time.sleep(min(0.1 * 2**attempt, self.timeout))
            try:
                status, answer = self._send(path, data)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if status == 404 and path:
                return {"rows": [], "aggregations": {"count": 0}}  # a namespace begins with its first entry
            if 200 <= status < 300:
                try:
                    return json.loads(answer)
                except (ValueError, RecursionError):
                    problem = "an answer that is not JSON"
                    continue
            problem = f"HTTP status {status}"
            if 400 <= status < 500 and status not in (408, 429):
                break  # asking again will not help
        self._failed(problem)
        return None

    def _send(self, path: str, data: bytes) -> tuple[int, bytes]:
        """Send one request. Redirections are not followed: the key is for this host."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.timeout)
        try:
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request("POST", self._path + path, data, headers)
            response = connection.getresponse()
            until = time.monotonic() + self.timeout
            answer = b""
            while part := response.read1(1 << 16):  # a timeout of the socket alone lets a slow drip go on for ever
                answer += part
                if len(answer) > _MOST or time.monotonic() > until:
                    raise OSError("an answer that is too long, or too slow")
            return response.status, answer
        finally:
            connection.close()

    def _failed(self, problem: str) -> None:
        self.failures += 1
        self.last_failure = problem[:200]
