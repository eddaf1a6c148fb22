"""Reads test code without running it: asserts that only compare a result become call tests; the rest is run in a sandbox of its own.

``assert f(1, [2]) == 3`` becomes ``CallTest(function="f", args=(1, [2]), expected=3, types="python")``: what the agent's process
returns is then compared here, and the test code never runs.
"""

from __future__ import annotations

import ast
import builtins
import functools
from typing import Any

from fugu.coding.sandbox.values import to_plain
from fugu.coding.task import AssertTest, CallTest, TaskError, Test


def lift(code: str, entry_point: str) -> tuple[Test, ...]:
    """Return the tests that ``code`` holds: a call test for each assert, or all of it as one assert test if any says more than a
    call test can.

    Functions ``check(candidate)``, as HumanEval has them, are looked into.
    """
    tree = _parsed(code)
    tests: list[Test] = []
    for statement in _statements(tree):
        test = _call_test(statement, entry_point)
        if test is None:
            return (AssertTest(code=code),)
        tests.append(test)
    return tuple(tests) or (AssertTest(code=code),)


@functools.lru_cache(maxsize=4096)
def free_names(code: str) -> tuple[str, ...]:
    """Return names that ``code`` uses and neither defines nor finds among Python's own: the agent is expected to define them."""
    tree = _parsed(code)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return tuple(sorted(used - bound - set(dir(builtins)) - {"candidate", "__name__", "__file__"}))


def _parsed(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"the test code is not Python: {error}") from None


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """Return what the code asserts; anything else is kept, so that it is seen not to be an assert."""
    checks = {
        f"check({name})"
        for node in tree.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "check"
        for name in (ast.unparse(argument) for argument in node.value.args)
    }
    out: list[ast.stmt] = []
    for node in tree.body:
        if _says_nothing(node) or (isinstance(node, ast.Expr) and ast.unparse(node) in checks):
            continue
        if checks and isinstance(node, ast.FunctionDef) and node.name == "check":
            out += [statement for statement in node.body if not _says_nothing(statement)]
        else:
            out.append(node)
    return out


def _says_nothing(node: ast.stmt) -> bool:
    """Return True for ``pass``, a text on its own, ``METADATA = {...}`` and ``assert True``."""
    if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return True
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "METADATA":
        return True
    return isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and node.test.value is True


def _call_test(node: ast.stmt, entry_point: str) -> CallTest | None:
    if not isinstance(node, ast.Assert) or not isinstance(node.test, ast.Compare) or len(node.test.ops) != 1:
        return None
    call, operator, right = node.test.left, node.test.ops[0], node.test.comparators[0]
    if not isinstance(call, ast.Call) or call.keywords or not isinstance(call.func, ast.Name):
        return None
    function = entry_point if call.func.id == "candidate" else call.func.id
    if function != entry_point or any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    try:
        args = tuple(_literal(argument) for argument in call.args)
        expected = _literal(right)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
    if isinstance(operator, ast.Is) and (expected is None or isinstance(expected, bool)):
        return CallTest(function=function, args=args, expected=expected)
    if isinstance(operator, ast.Eq):
        return CallTest(function=function, args=args, expected=expected, types="python")
    return None


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal that can be passed on, or raise ValueError."""
    value = ast.literal_eval(node)
    to_plain(value)
    return value
