"""The judge beside plain Python: test code passes and fails as if it ran in one process with the program."""

from __future__ import annotations

import json
import subprocess
import sys

from fugu.coding.compare import result_equals
from fugu.coding.judge import Judge
from fugu.coding.lift import lift
from fugu.coding.sandbox.contract import Limits
from fugu.coding.sandbox.values import encode
from fugu.coding.task import Task
from tests.coding.plain_cases import ASSERTS, LITERALS, OTHERWISE, POINT, RESULTS, values

PLAIN = """
import json, sys
out = []
for source, code in json.load(sys.stdin):
    place = {"__name__": "__main__"}
    try:
        exec(source, place)
        place["candidate"] = place.get("f")
        exec(code, place)
        out.append(True)
    except BaseException:
        out.append(False)
print(json.dumps(out))
"""

PAIRS = """{setup}
VALUES = [{values}]
out = []
for k in range(len(VALUES)):
    x = {get}
    for make in VALUES:
        v = make()
        out.append((x == v, v == x, x != v))
"""


def plainly(cases):
    done = subprocess.run([sys.executable, "-c", PLAIN], input=json.dumps(cases), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def judged(sandbox, cases):
    """Return the verdicts of (source, test code): asserts that can be lifted are, and run in one process."""
    tasks = [
        (Task(id=str(k), prompt="", entry_point="f", hidden=lift(code, "f"), limits=Limits(cpu_s=4, wall_s=10)), source)
        for k, (source, code) in enumerate(cases)
    ]
    verdicts = Judge(sandbox, share_process=True).score(tasks)
    assert all(verdict.scored for verdict in verdicts)
    return verdicts


def test_test_code_passes_and_fails_as_in_one_process(sandbox):
    cases = [(source, code) for _, source, code in ASSERTS]
    verdicts = judged(sandbox, cases)
    wanted = plainly(cases)
    assert 0.3 < sum(wanted) / len(wanted) < 0.9
    wrong = {
        name: verdict.detail
        for (name, *_), verdict, right in zip(ASSERTS, verdicts, wanted, strict=True)
        if (verdict.status == "ok") != right
    }
    assert not wrong


def test_values_of_many_types_are_equal_to_what_they_are_equal_to_in_plain_python(sandbox):
    every = values(RESULTS)
    place = {}
    exec(PAIRS.format(setup=POINT, values=", ".join(f"lambda: {each}" for each in every), get="VALUES[k]()"), place)
    program = f"{POINT}VALUES = [{', '.join(f'lambda: {each}' for each in every)}]\ndef f(k): return VALUES[k]()"
    code = PAIRS.format(setup=POINT, values=", ".join(f"lambda: {each}" for each in every), get="f(k)")
    code += f"wrong = [(k, i) for k, i in enumerate(out) if i != {place['out']!r}[k]]\nassert not wrong, wrong\n"
    (verdict,) = judged(sandbox, [(program, code)])
    assert verdict.status == "ok", verdict.detail


def test_lifted_asserts_compare_values_of_many_types_as_plain_python_does():
    exec(POINT, place := {})
    for text in values(RESULTS):
        value = eval(text, place)
        for literal in values(LITERALS):
            expected = eval(literal)
            try:
                equal = result_equals(expected, encode(value), types="python")
            except ValueError:  # it cannot leave the sandbox
                equal = False
            assert equal is (value == expected), (text, literal)


def test_what_is_documented_to_differ_does(sandbox):
    cases = [(source, code) for source, code, _ in OTHERWISE.values()]
    plain = plainly(cases)
    assert plain == [passes for *_, passes in OTHERWISE.values()]
    for name, passes, verdict in zip(OTHERWISE, plain, judged(sandbox, cases), strict=True):
        assert (verdict.status == "ok") is not passes, (name, verdict)
