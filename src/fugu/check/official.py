"""The checkers that Gymnasium and PettingZoo ship, their warnings and assertions turned into findings."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import traceback
import warnings
from typing import Any

import gymnasium

from fugu.check.masked import MaskHeeding, may_forbid
from fugu.check.report import Report, Severity

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_SAID_BETTER = (
    "infinity",  # an unbounded observation is common and harmless; unbounded actions have their own finding
    "unwrapped version",
    "render",
    "alternative render modes",
    "Casting input",
    "precision lowered",
    "is all zeros",
)
"""parts of warnings that are left out: noise, or the subject of a check of ours"""

_ONLY_WORTH_KNOWING = ("symmetric and normalized", "values are equal", "seed` function is dropped", "although similar")


def check_gymnasium(env: Any, report: Report) -> None:
    """Run ``gymnasium.utils.env_checker.check_env`` on a fresh env."""
    from gymnasium.utils.env_checker import check_env

    env = env.unwrapped
    tried = MaskHeeding(env) if may_forbid(env) else env
    _run(lambda: check_env(tried, skip_render_check=True), "Gymnasium's check_env", report, "warning")


def check_pettingzoo(env: Any, report: Report, *, cycles: int) -> None:
    """Run PettingZoo's ``api_test`` or ``parallel_api_test`` on a fresh env, if PettingZoo is there."""
    if importlib.util.find_spec("pettingzoo") is None:
        return
    from pettingzoo.utils import BaseWrapper
    from pettingzoo.utils.conversions import (
        aec_to_parallel_wrapper,
        parallel_to_aec_wrapper,
        turn_based_aec_to_parallel_wrapper,
    )
    from pettingzoo.utils.env import AECEnv, ParallelEnv

    wrappers = (aec_to_parallel_wrapper, parallel_to_aec_wrapper, turn_based_aec_to_parallel_wrapper, BaseWrapper)
    if isinstance(env.unwrapped, wrappers):
        return  # converted from the other kind: PettingZoo's tests refuse those on principle
    if isinstance(env, ParallelEnv):
        from pettingzoo.test import parallel_api_test

        _run(lambda: parallel_api_test(env, num_cycles=cycles), "PettingZoo's parallel_api_test", report, "note")
    elif isinstance(env, AECEnv):
        from pettingzoo.test import api_test

        _run(lambda: api_test(env, num_cycles=cycles), "PettingZoo's api_test", report, "note")


def _run(test: Any, name: str, report: Report, severity: Severity) -> None:
    """Run one foreign checker; what it says is an error unless we found the cause already."""
    known = not report.ok
    level = gymnasium.logger.min_level
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        gymnasium.logger.min_level = gymnasium.logger.WARN
        try:
            test()
        except Exception as error:
            reused = "share an object" in str(error)
            fix = (
                "see the findings above: probably the same cause; if not, do what the message asks"
                if known
                else "do what the message asks; the check stopped there"
            )
            if reused:
                fix = "return new arrays and dicts from every call. fugu copies rows and is not affected"
            report.add("note" if known or reused else "error", name, _message(error), fix)
        finally:
            gymnasium.logger.min_level = level
    for warning in caught:
        text = _COLOUR.sub("", str(warning.message)).removeprefix("WARN: ").strip()
        if any(part in text for part in _SAID_BETTER) or issubclass(warning.category, DeprecationWarning):
            continue
        mild = known or any(part in text for part in _ONLY_WORTH_KNOWING)
        report.add("note" if mild else severity, name, text, "do what the message asks, or ignore it if it is meant so")


def _message(error: Exception) -> str:
    text = _COLOUR.sub("", str(error)).strip()
    if not text:  # a bare assert: its line says what was expected
        line = traceback.extract_tb(error.__traceback__)[-1].line
        text = f"failed: {line}"
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
