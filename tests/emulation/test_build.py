"""Native environments of one's own: compiled, loaded, stepped by every backend, and wrong ones refused in words."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.trainer.test_loop import BASE, train

import fugu
from fugu.cli.main import main
from fugu.compiler import cache_folder, shipped_headers
from fugu.emulation.build import build, load
from fugu.emulation.native import names
from fugu.errors import ConfigError, SpaceError, WorkerDied
from fugu.trainer import checkpoint
from fugu.vector.config import VectorConfig

COLUMNS = ("obs", "reward", "terminated", "truncated", "first", "mask")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache for all tests here, so that each thing is compiled once; never the user's own."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh starter, in the current folder."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "env", "--native", "my_env.h"]) == 0
    return tmp_path / "my_env.h"


def change(header: Path, old: str, new: str) -> None:
    text = header.read_text()
    assert old in text
    header.write_text(text.replace(old, new))


def play(env: object, backend: str, **settings: object) -> list[bytes]:
    with fugu.vector.make(env, 6, backend=backend, seed=3, **settings) as vec:
        actions = np.random.default_rng(0).integers(0, 2, (150, 6))
        vec.async_reset()
        seen = []
        for action in actions:
            rows = vec.recv()
            seen += [getattr(rows, column).tobytes() for column in COLUMNS]
            vec.send(action)
        vec.recv()
        return seen


@pytest.mark.parametrize("debug", [False, True])
def test_an_environment_is_compiled_with_the_flags_of_the_core(header, monkeypatch, tmp_path, debug):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    commands: list[list[str]] = []
    monkeypatch.setattr("fugu.emulation.build._compile", lambda command, header, library: commands.append(command))
    build(header, debug=debug)
    root = Path(__file__).parents[2]
    flags = re.findall(r"^-\S+$", (root / "native" / "flags.txt").read_text(), re.MULTILINE)
    assert "-O3" in flags and [flag for flag in commands[0] if flag in flags] == flags
    assert [flag for flag in commands[0] if flag.startswith("-O")][-1] == ("-O1" if debug else "-O3")
    options = re.findall(r"target_compile_options\(_native PRIVATE (.*)\)", (root / "CMakeLists.txt").read_text())
    assert options[0] == "${FUGU_FLAGS}", "flags of the core belong into native/flags.txt"


@pytest.mark.slow
def test_lanes_give_the_same_bytes_as_one_world_after_the_other(header):
    after_the_other = play("my_env.h", "native", env_kwargs={"max_steps": 9})
    change(header, "static constexpr int time_limit", "static constexpr bool lanes = true;\n  static constexpr int time_limit")
    with pytest.raises(ConfigError, match="lanes need: static bool step"):
        build("my_env.h")
    change(header, "const Params& p, fugu::Rng&, const Action*", "const Params& p, const Action*")
    assert play("my_env.h", "native", env_kwargs={"max_steps": 9}) == after_the_other
    assert play("my_env.h", "serial", env_kwargs={"max_steps": 9}) == after_the_other


def test_starter_is_sound_and_shows_its_settings(header, capsys):
    report = fugu.check_env("my_env.h", env_kwargs={"size": 5})
    assert report.ok and not report.findings, str(report)
    assert main(["check", "my_env.h", "--env.size", "20", "--steps", "50"]) == 0
    assert main(["check", "my_env.h", "--env.sise", "20"]) != 0
    assert "'size'" in "".join(capsys.readouterr())


def test_every_backend_gives_the_same_bytes(header):
    expected = play("my_env.h", "native", num_workers=2)
    assert play("my_env.h", "serial") == play("my_env.h", "process", num_workers=2) == expected
    assert play(["my_env.h"] * 6, "serial") == expected


def test_commands_measure_it(header, capsys):
    assert main(["bench", "vector", "my_env.h", "--num-envs", "64", "--seconds", "0.02"]) == 0
    assert main(["autotune", "my_env.h", "--num-envs", "64", "--seconds", "0.02"]) == 0
    assert "backend='native'" in capsys.readouterr().out


def test_copy_of_a_built_in_environment_gives_its_bytes(tmp_path):
    source = (shipped_headers() / "fugu" / "envs" / "cartpole.h").read_text()
    copy = tmp_path / "copy.h"
    copy.write_text(re.sub(r'"\.\./(\w+\.h)"', r"<fugu/\1>", source) + "\nFUGU_ENVIRONMENT(fugu::CartPole)\n")
    assert play(str(copy), "native") == play("cartpole", "native")
    assert names().count("cartpole") == 1 and all("copy" not in name for name in names())


def test_what_did_not_change_is_not_compiled_again(header):
    (header.parent / "beside.h").write_text("constexpr float kReward = 1.0f;\n")
    change(header, "#pragma once", '#pragma once\n#include "beside.h"')
    change(header, "there ? 1.0f", "there ? kReward")
    first = build(header)
    time = first.stat().st_mtime_ns
    assert build(header) == first and first.stat().st_mtime_ns == time
    (header.parent / "beside.h").write_text("constexpr float kReward = 2.0f;\n")
    second = build(header)
    assert second != first
    assert load(first) != load(second)  # an edit can be tried while the old one is still running
    rewards = set()
    with fugu.vector.make("my_env.h", 16) as vec:
        vec.reset(seed=0)
        for _ in range(50):
            rewards |= set(vec.step(np.ones(16, np.int64))[1].tolist())
    assert max(rewards) == 2.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("s.position == s.goal;", "s.position == s.gaol;", r"my_env.h:\d+:\d+: error: .*gaol"),
        ("FUGU_ENVIRONMENT(MyEnv)", "", r"end it with the line FUGU_ENVIRONMENT\(MyEnv\)"),
        ("float position, goal;", "float position;", "Obs and the fields in `observation` differ in size"),
        ("FUGU_HD static void reset", "FUGU_HD static void rset", "add: static void reset"),
        ("int32_t position, goal;", "int32_t position, goal; std::vector<int> path;", "error"),
        (
            '{fugu::box("", 2, 0.0, 1.0)}',
            '{fugu::box("b", 1), fugu::box("a", 1)}',
            "`observation` need names, in alphabetical order",
        ),
        (
            '{fugu::box("", 2, 0.0, 1.0)}',
            '{fugu::box("", 1), fugu::box("a", 1)}',
            "`observation` need names, in alphabetical order",
        ),
        ('fugu::discrete("", 2)', 'fugu::discrete("", 0)', "at least one choice"),
        ("int agents = 1;", "int agents = 0;", "agents must be at least 1"),
        ("int time_limit = 100;", "int time_limit = -5;", "time_limit must not be negative"),
        ('"step_reward", &Params::step_reward', '"max_steps", &Params::step_reward', "setting max_steps already"),
        ('"step_reward", &Params::step_reward', '"step_reward", &Params::step_reward, 0, 1', "outside the range"),
        (
            "#ifndef __CUDACC_RTC__\n  //",
            "static bool acting(const State&, const Params&, int) { return true; }\n#ifndef __CUDACC_RTC__\n  //",
            "acting must be",
        ),
        (
            "#ifndef __CUDACC_RTC__\n  //",
            "static void action_mask(const State&, int, bool*) {}\n#ifndef __CUDACC_RTC__\n  //",
            "action_mask must be",
        ),
        (
            "bool valid(const State& s, const Params& p, bool /*over*/)",
            "bool valid(const State& s, const Params& p)",
            "valid must be",
        ),
    ],
)
def test_what_does_not_compile_is_said_in_words(header, old, new, text, capsys):
    change(header, old, new)
    with pytest.raises(ConfigError, match=text):
        fugu.vector.make("my_env.h", 4)
    assert main(["build", "my_env.h"]) == main(["check", "my_env.h"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_without_valid_there_are_no_saved_states(header):
    with fugu.vector.make("my_env.h", 4) as vec:
        assert vec.can_snapshot
    change(header, "bool valid(", "bool not_asked(")
    with fugu.vector.make("my_env.h", 4) as vec:
        vec.reset(seed=0)
        assert not vec.can_snapshot
        for act in (vec.snapshot, lambda: vec.restore({})):
            with pytest.raises(ConfigError, match=r"my_env has no valid\(state, params, over\).*Add it to the header"):
                act()


@pytest.mark.slow
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_run_without_valid_that_is_killed_and_resumed_equals_one_that_is_not(header, device, tmp_path):
    change(header, "bool valid(", "bool not_asked(")
    vector = VectorConfig(num_envs=16, **({"backend": "device", "device": device} if device else {"num_workers": 1}))
    config = dataclasses.replace(BASE, env=str(header), vector=vector)
    whole, weights = train(config, tmp_path / "whole")
    cut, _ = train(config, tmp_path / "cut", updates=2 * len(whole) // 3)
    saved = checkpoint.find(tmp_path / "cut")
    done = checkpoint.load(saved).state["updates"]
    assert not checkpoint.load(saved).tensors.get("envs")
    again, same_weights = train(config, tmp_path / "cut", resume=saved)
    assert cut == whole[: len(cut)] and 0 < done < len(cut) and again == whole[done:]
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)


@pytest.mark.slow
def test_settings_may_be_missing(header):
    text = header.read_text()
    start = text.index("  static constexpr fugu::Param<Params>")
    header.write_text(text[:start] + text[text.index("\n", start) + 1 :])
    assert fugu.check_env("my_env.h").ok
    with pytest.raises(ConfigError, match="no setting 'size'"):
        fugu.vector.make("my_env.h", 1, env_kwargs={"size": 5})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "field", "good", "bad"),
    [
        ("struct Action { uint8_t key[2]; }", 'bytes("", 1, 2, 200)', [[163, 69]], [[163, 201]]),
        ("struct Action { int8_t key[2]; }", 'signed_bytes("", 2, -5, 5)', [2, -3], [2, -6]),
        ("using Action = int8_t", 'multi_binary("", 1)', [1], [2]),
    ],
)
def test_actions_of_bytes_are_taken_within_their_space(header, action, field, good, bad):
    change(header, "using Action = int64_t", action)
    change(header, 'discrete("", 2)', field)
    change(header, "action[0] == 1", "reinterpret_cast<const int8_t*>(action)[0] == 1")
    with fugu.vector.make("my_env.h", 3) as vec:
        vec.reset(seed=0)
        dtype = vec.action_space.dtype
        vec.step(np.array([good] * 3, dtype))
        with pytest.raises(SpaceError, match="at agent 1 is outside"):
            vec.step(np.array([good, bad, good], dtype))


@pytest.mark.slow
def test_a_library_by_its_path_is_what_is_in_it(header, tmp_path):
    first = shutil.copy(build(header), tmp_path / "cartpole.so")
    (tmp_path / "other").mkdir()
    change(header, "time_limit = 100", "time_limit = 7")
    change(header, 'name = "my_env"', 'name = "other"')
    second = shutil.copy(build(header), tmp_path / "other" / "cartpole.so")
    made = []
    for library in (first, second):
        with fugu.vector.make(str(library), 1) as vec:
            made.append(vec.spec.name)
    assert made == ["my_env", "other"]
    assert names().count("cartpole") == 1 and fugu.vector.make("cartpole", 1).spec.name == "cartpole"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"isolate": True}, {"on_error": "restart"}])
def test_what_may_take_its_process_down_can_be_kept_out_of_this_one(header, settings):
    change(header, "const bool there", "if (s.position == p.size - 1) __builtin_trap();\n    const bool there")
    with pytest.raises(ConfigError, match="use backend='process'"):
        fugu.vector.make("my_env.h", 2, backend="native", **settings)
    with fugu.vector.make("my_env.h", 2, num_workers=2, **settings) as vec:
        assert vec.config.backend == "process"
        vec.reset(seed=0)
        with pytest.raises(WorkerDied) if "isolate" in settings else contextlib.nullcontext():
            for _ in range(20):
                vec.step(np.ones(2, np.int64))


def test_a_cache_that_cannot_be_used_is_named(header, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot write to the cache folder .*; set XDG_CACHE_HOME to another"):
        build("my_env.h")
    monkeypatch.setattr("tempfile.TemporaryDirectory", lambda **_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "fresh"))
    with pytest.raises(ConfigError, match="fresh/fugu: Read-only file system"):
        build("my_env.h")
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "fugu"


def test_a_missing_compiler_or_file_is_an_error_that_says_what_to_do(header, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="no such file.*fugu new env --native"):
        fugu.vector.make("nothing.h", 1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no C\\+\\+ compiler.*install one"):
        fugu.vector.make("my_env.h", 1)


def test_other_libraries_are_refused(tmp_path):
    fake = tmp_path / "fake.so"
    fake.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"cannot load .*fake.so"):
        fugu.vector.make(str(fake), 1)


def test_starter_never_overwrites_and_wants_a_header_name(header, capsys):
    assert main(["new", "env", "--native", "my_env.h"]) == 1
    assert main(["new", "env", "--native", "other.py"]) == 2
    assert "other.h" in capsys.readouterr().err


@pytest.mark.slow
def test_sanitizers_find_what_an_ordinary_build_lets_pass(header):
    def debug() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fugu", "build", "my_env.h", "--debug"]
        return subprocess.run(command, cwd=header.parent, capture_output=True, text=True, env=dict(os.environ))

    fine = debug()
    assert fine.returncode == 0 and "no findings" in fine.stdout, fine.stdout + fine.stderr
    with pytest.raises(ConfigError, match="LD_PRELOAD"):
        load(build(header, debug=True))
    change(header, "int32_t position, goal;", "int32_t position, goal, seen[4];")
    change(header, "const bool there", "s.seen[s.position] = 1;\n    const bool there")
    broken = debug()
    assert broken.returncode == 1
    assert re.search(r"my_env.h:\d+:\d+: runtime error: index \d out of bounds", broken.stderr), broken.stderr
