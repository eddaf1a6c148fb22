"""The language of SandboxFusion's ``POST /run_code``: a program as a question, an answer as an outcome's parts.

There is one question and one answer per program, so calls are made by a driver around it: their arguments go all at once, and what they
return comes as lines of the output, behind a mark that nobody can guess. Test code beside a program cannot be run.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fugu.coding.sandbox import values
from fugu.coding.sandbox.box import last_line
from fugu.coding.sandbox.contract import Program, Status


def question(program: Program, mark: str) -> dict[str, Any]:
    """Return the body of a request."""
    try:
        code = program.source.decode() if not program.calls else driver(program, mark)
    except UnicodeDecodeError:  # the text of a request is; what Python makes of other bytes has to be found out over there
        code = driver(program, mark)
    return {
        "code": code,
        "language": "python",
        "stdin": program.stdin.decode("utf-8", "replace"),
        "run_timeout": program.limits.wall_s,
        "compile_timeout": program.limits.wall_s,
        "memory_limit_MB": program.limits.memory_mb,
        "files": {},
        "fetch_files": [],
    }


def driver(program: Program, mark: str) -> str:
    """Return Python that runs the program, makes its calls, and writes each result on a line of its own that begins with ``mark``."""
    calls = [(call.function, call.args.decode("utf-8", "replace")) for call in program.calls]
    source = base64.b64encode(program.source).decode()
    text = Path(values.__file__).read_text()
    return f"""{text}
import base64, os, sys
place = {{"__name__": "__main__"}}
exec(compile(base64.b64decode({source!r}), "<program>", "exec"), place)
for function, arguments in {calls!r}:
    result = encode(place[function](*decode(arguments.encode()))).decode()
    sys.stdout.flush()
    os.write(1, ("\\n{mark} " + result + "\\n").encode())
"""


def split_results(stdout: bytes, mark: str, program: Program) -> tuple[bytes, tuple[bytes, ...]]:
    """Split off what the program wrote from what it returned."""
    start = f"\n{mark} ".encode()
    written, *rest = stdout.split(start)
    results = []
    for each in rest[: len(program.calls)]:
        result, _, more = each.partition(b"\n")
        if len(result) <= program.limits.result_kb * 1024:
            results.append(result)
        written += more
    return written, tuple(results)


def understood(answer: bytes) -> dict[str, Any] | None:
    """Return the fields of an answer, each of the type it should have; None for anything else."""
    try:
        told = json.loads(answer)
        run = told.get("run_result") or {}
        wall, code = run.get("execution_time") or 0.0, run.get("return_code")
        fine = isinstance(wall, int | float) and math.isfinite(wall) and wall >= 0 and (code is None or isinstance(code, int))
        texts = [run.get("stdout") or "", run.get("stderr") or ""]
        if not fine or not all(isinstance(text, str) for text in texts):
            return None
        return {
            "status": str(told.get("status")),
            "ran": str(run.get("status")),
            "message": str(told.get("message") or ""),
            "stdout": texts[0].encode("utf-8", "replace"),
            "stderr": texts[1].encode("utf-8", "replace"),
            "wall_s": float(wall),
            "code": code,
        }
    except (ValueError, AttributeError, RecursionError):
        return None


def verdict(program: Program, told: Mapping[str, Any], results: int) -> tuple[Status, str]:
    size = len(told["stdout"]) + len(told["stderr"])
    if told["ran"] == "TimeLimitExceeded":
        return "time_limit", f"more than {program.limits.wall_s} s"
    if told["status"] not in ("Success", "Failed") or told["ran"] not in ("Finished", "Error"):
        return "internal_error", f"the service says {told['status']}: {told['message']}"
    if size > program.limits.flood_kb * 1024:
        return "output_limit", f"{size} bytes of output"
    last = last_line(told["stderr"])
    if last.startswith("MemoryError"):
        return "memory_limit", f"more than {program.limits.memory_mb} MB"
    if told["code"] != 0:
        return "runtime_error", last or f"exit code {told['code']}"
    if results < len(program.calls):
        return "runtime_error", f"it ended after {results} of {len(program.calls)} calls"
    return "ok", ""
