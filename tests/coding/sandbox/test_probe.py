"""What the machine allows, and what happens where it allows less: refused by default, possible by name, and as tight as it can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fugu.coding.sandbox import Limits, Program, Sandbox, SandboxConfig, probe
from fugu.coding.sandbox.config import FEATURES
from fugu.errors import ConfigError, SandboxError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fork backend needs Linux")

LEVELS = [
    ((), 3),
    (("landlock",), 3),
    (("process_limit",), 2),
    (("mounts",), 2),
    (("namespaces",), 2),
    (("mounts", "landlock"), 1),
    (("namespaces", "landlock"), 1),
    (("seccomp",), 0),
    (("namespaces", "landlock", "seccomp"), 0),
]


@pytest.mark.parametrize(("missing", "level"), LEVELS)
def test_the_level_follows_from_what_works(missing, level):
    report = probe.Report(dict.fromkeys([*missing, *(("mounts", "process_limit") if "namespaces" in missing else ())], "test"))
    assert report.level == level


def test_what_was_found_is_said_with_a_reason_and_a_remedy():
    report = probe.examine(("namespaces", "landlock", "seccomp"))
    assert set(report.missing) == set(FEATURES) and report.level == 0 and report.plan == 0
    assert report.missing["namespaces"] == "pretended to be missing" and report.missing["mounts"] == "needs namespaces"
    assert set(report.remedies()) == set(FEATURES) and all(report.remedies().values())


@pytest.mark.parametrize(
    "missing", [("namespaces",), ("mounts",), ("seccomp",), ("namespaces", "landlock"), ("process_limit",)]
)
def test_less_than_asked_for_is_refused_and_says_what_to_do(missing):
    with pytest.raises(SandboxError) as caught:
        Sandbox(SandboxConfig(pretend_missing=missing))
    text = str(caught.value)
    assert "not at 3" in text and f"allow={missing!r}" in text
    for name in missing:
        assert f"{name}: pretended to be missing" in text


def test_an_opt_out_covers_only_what_it_names():
    config = SandboxConfig(pretend_missing=("namespaces", "landlock"), allow=("namespaces",))
    with pytest.raises(SandboxError, match="landlock"):
        probe.require(config)
    with pytest.raises(SandboxError, match="seccomp"):
        probe.require(SandboxConfig(pretend_missing=("namespaces", "seccomp"), allow=("namespaces", "landlock")))
    assert probe.require(SandboxConfig(pretend_missing=("namespaces",), min_level=2)).level == 2


def test_unknown_features_and_impossible_settings_are_named():
    for wrong in (
        {"allow": ("landlok",)},
        {"backend": "forks"},
        {"min_level": 4},
        {"in_flight": 0},
        {"workers": 0},
        {"retries": -1},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong)) if "backend" not in wrong else "fork"):
            SandboxConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="landlock"):
        SandboxConfig(allow=("landlok",))


KEPT, WRITTEN = Path(f"/tmp/fugu-kept-{os.getpid()}"), Path(f"/tmp/fugu-written-{os.getpid()}")
ATTEMPTS = {
    "socket": b"import socket; socket.socket()",
    "fork": b"import os; os.fork()",
    "exec": b"import os; os.execv('/bin/sh', ['sh'])",
    "signal": b"import os; os.kill(%d, 0)" % os.getpid(),
    "write": f"open('{WRITTEN}', 'w')".encode(),
    "unlink": f"import os; os.unlink('{KEPT}')".encode(),
    "read": b"open('/etc/hostname').read()",
}
CONTAINED = {
    ("landlock",): set(ATTEMPTS) - {"write"},
    ("process_limit",): set(ATTEMPTS) - {"write"},
    ("mounts",): set(ATTEMPTS),
    ("namespaces",): set(ATTEMPTS),
    ("namespaces", "landlock"): set(ATTEMPTS) - {"read"},
}
"""what fails at each reduced level; a write with mounts succeeds, in a /tmp that is the program's own"""


@pytest.mark.parametrize("missing", list(CONTAINED))
def test_reduced_levels_hold_what_they_promise(missing, everyones_python):
    if set(probe.examine(python=everyones_python).missing) - set(missing):
        pytest.skip(f"the machine itself lacks {probe.examine().missing}")
    config = SandboxConfig(workers=1, pretend_missing=missing, allow=missing, python=everyones_python)
    kept, written = KEPT, WRITTEN
    kept.write_text("")
    kept.chmod(0o666)
    try:
        with Sandbox(config) as sandbox:
            assert set(missing) <= set(sandbox.isolation.missing)
            good, late = sandbox.run(
                [
                    Program(
                        source=b"import email, threading\nt = threading.Thread(target=print, args=('hi',)); t.start(); t.join()"
                    ),
                    Program(source=b"while True: pass", limits=Limits(cpu_s=0.2, wall_s=2)),
                ]
            )
            assert (good.status, good.stdout, late.status) == ("ok", b"hi\n", "time_limit")
            assert good.isolation == sandbox.isolation
            outcomes = sandbox.run([Program(source=source) for source in ATTEMPTS.values()])
            failed = {name for name, outcome in zip(ATTEMPTS, outcomes, strict=True) if outcome.status == "runtime_error"}
            assert failed == CONTAINED[missing]
            assert kept.exists() and not written.exists()
    finally:
        kept.unlink()


def test_with_nothing_at_all_programs_still_have_limits_and_no_rights(everyones_python):
    """Level 0 by name: used for nothing but limits; what a program started is ended with it."""
    missing = ("namespaces", "landlock", "seccomp")
    with Sandbox(SandboxConfig(workers=1, pretend_missing=missing, allow=missing, python=everyones_python)) as sandbox:
        assert sandbox.isolation.level == 0
        source = b"import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(30); os._exit(0)\nprint(os.getuid() != 0)"
        (outcome,) = sandbox.run([Program(source=source)])
        assert (outcome.status, outcome.stdout) == ("ok", b"True\n" if os.geteuid() == 0 else outcome.stdout)
        late, large = sandbox.run(
            [
                Program(source=b"while True: pass", limits=Limits(cpu_s=0.2, wall_s=2)),
                Program(source=b"bytearray(10**10)"),
            ]
        )
        assert (late.status, large.status) == ("time_limit", "memory_limit")
        import psutil

        outer = psutil.Process(sandbox.backend._workers[0].process.pid)  # type: ignore[attr-defined]
        assert outer.children(recursive=True) == []


UNPRIVILEGED = """
import os, sys, types
place, user = sys.argv[1], int(sys.argv[2])
# Without the rest of the library, which this interpreter may not have the dependencies of.
for name in ("fugu", "fugu.coding"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [os.path.join(place, *name.split(".")[1:])]
import fugu.coding.sandbox.fork, fugu.coding.sandbox as s
os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
with s.Sandbox(s.SandboxConfig(workers=1)) as sandbox:
    program = s.Program(source=b"import os; print(os.getpid(), os.listdir('/tmp'))")
    print(sandbox.isolation.level, sandbox.run([program])[0].stdout)
"""


def test_an_unprivileged_user_reaches_the_full_level(everyones_python, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("all other tests run as an unprivileged user already")
    import shutil

    import fugu

    assert fugu.__file__ is not None
    place = Path("/tmp") / f"fugu-unprivileged-{os.getpid()}"
    shutil.copytree(Path(fugu.__file__).parent, place, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    try:
        place.chmod(0o755)
        command = [everyones_python, "-S", "-B", "-c", UNPRIVILEGED, str(place), "54321"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        shutil.rmtree(place)
    if "kept apart at level" in done.stderr:
        pytest.skip("user namespaces are for root only here")
    assert done.stdout == "3 b'1 []\\n'\n", done.stderr
