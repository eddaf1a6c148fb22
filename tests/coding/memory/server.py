"""A service that speaks as much of turbopuffer's API as we use, on this machine, and fails when told to."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

KEY = "the-key"


class FakeTurbopuffer:
    def __init__(self) -> None:
        self.rows: dict[str, dict[str, dict]] = {}  # namespace -> id -> row
        self.metrics: dict[str, str] = {}
        self.requests: list[tuple[str, dict]] = []
        self.trouble: list[object] = []
        """what the next requests get instead of an answer: a status, bytes, or "drop", "slow" """
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.requests.append((self.path, body))
                trouble = fake.trouble.pop(0) if fake.trouble else None
                if trouble == "drop":
                    self.close_connection = True
                    return None
                if trouble == "slow":
                    time.sleep(0.6)
                if isinstance(trouble, int):
                    return self.answer(trouble, b'{"error": "trouble"}')
                if isinstance(trouble, bytes):
                    return self.answer(200, trouble)
                if self.headers["Authorization"] != f"Bearer {KEY}":
                    return self.answer(401, b"{}")
                parts = self.path.strip("/").split("/")
                status, reply = fake.query(parts[2], body) if parts[3:] == ["query"] else fake.write(parts[2], body)
                return self.answer(status, json.dumps(reply).encode())

            def answer(self, status: int, data: bytes) -> None:
                self.send_response(status)
                if status in (301, 302, 307):
                    self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def write(self, namespace: str, body: dict) -> tuple[int, dict]:
        rows = self.rows.setdefault(namespace, {})
        if "delete_by_filter" in body:
            for name in [name for name, row in rows.items() if matches(body["delete_by_filter"], row)]:
                del rows[name]
        for row in body.get("upsert_rows", []):
            self.metrics[namespace] = body["distance_metric"]
            rows[row["id"]] = row
        for name in body.get("deletes", []):
            rows.pop(name, None)
        return 200, {"status": "OK"}

    def query(self, namespace: str, body: dict) -> tuple[int, dict]:
        if namespace not in self.rows:
            return 404, {"error": "no such namespace"}
        rows = [row for row in self.rows[namespace].values() if matches(body.get("filters"), row)]
        if "aggregate_by" in body:
            return 200, {"aggregations": {"count": len(rows)}}
        assert body["rank_by"][:2] == ["vector", "ANN"] and body["exclude_attributes"] == ["vector"]
        wanted = np.array(body["rank_by"][2])
        found = []
        for row in rows:
            vector = np.array(row["vector"])
            if self.metrics[namespace] == "cosine_distance":
                lengths = np.linalg.norm(wanted) * np.linalg.norm(vector)
                distance = 1 - (wanted @ vector / lengths if lengths else 0)
            else:
                distance = ((wanted - vector) ** 2).sum()
            found.append({**{k: v for k, v in row.items() if k != "vector"}, "$dist": float(distance)})
        return 200, {"rows": sorted(found, key=lambda row: row["$dist"])[: body["top_k"]]}


def matches(wanted: list | None, row: dict) -> bool:
    """As the documentation of the service has it."""
    match wanted:
        case None:
            return True
        case ["And", parts]:
            return all(matches(part, row) for part in parts)
        case ["Or", parts]:
            return any(matches(part, row) for part in parts)
        case ["Not", part]:
            return not matches(part, row)
    name, operator, value = wanted
    own = row.get(name)
    if operator in ("Gte", "Lte"):
        if own is None or isinstance(own, str) != isinstance(value, str):
            return False
        return own >= value if operator == "Gte" else own <= value
    return {"Eq": own == value, "NotEq": own != value, "In": operator == "In" and own in value}[operator]
