"""Nothing in the current folder is executed unless it was named: no command, worker or spawned process looks for its modules there."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fugu.cli.main import main
from fugu.emulation import beside
from fugu.emulation.factory import INSTALL, load_named
from fugu.errors import ConfigError, NotInstalled
from fugu.run.commit import Commit

PLANTED = (
    "json",
    "copy",
    "rich",
    "multiprocessing",
    "queue",
    "shlex",
    "signal",
    "struct",
    "typing",
    "random",
    "gymnasium",
    "numpy",
    "torch",
    "msgpack",
    "matplotlib",
    "pandas",
    "wandb",
    "pynvml",
    "nle",
    "minigrid",
    "minihack",
    "ale_py",
    "mpe2",
    "pettingzoo",
    "stable_baselines3",
    "triton",
)
ENV = """
import gymnasium as gym
import numpy as np
{imports}

class Walk(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        from lengths_later import LENGTH
        super().reset(seed=seed)
        self.t, self.length = 0, LENGTH
        return np.zeros(2, np.float32), {{}}
    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t >= self.length, False, {{}}

gym.register("Walk-v0", f"{{__name__}}:Walk")
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, full of modules that say that they were executed."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'executed')!r}, 'a').write({name + chr(10)!r})\n")
    monkeypatch.chdir(folder)
    return folder


def executed(folder: Path) -> str:
    return (folder / "executed").read_text() if (folder / "executed").exists() else ""


def test_commands_find_no_modules_in_the_current_folder(planted, capsys, monkeypatch):
    """Those that are not installed here are not there; those that are were imported already."""
    before = [*sys.path]
    for command in (["runs"], ["eval", "missing"]):
        main(command)
        assert not executed(planted), command
    assert sys.path == before


@pytest.mark.slow
@pytest.mark.parametrize("named", ["walking:Walk", "walking.py:Walk", "walking:Walk-v0"])
def test_what_a_module_that_was_named_imports_is_found_beside_it(planted, capsys, named):
    """At once and later, also in workers; and nothing that another library looks for meanwhile."""
    for name, text in (
        ("walking", ENV.format(imports="from lengths_at_once import LENGTH")),
        ("lengths_at_once", "LENGTH = 1"),
    ):
        (planted / f"{name}.py").write_text(text)
    (planted / "lengths_later.py").write_text("LENGTH = 7")
    done = fugu(
        "train", named, "--steps", "64", "--num-envs", "2", "--horizon", "8", "--minibatch", "16", "--backend", "process"
    )
    assert done.returncode == 0, done.stderr
    assert "length 7.0" in done.stdout or "return 7.0" in done.stdout, done.stdout
    assert not executed(planted)


def test_modules_beside_what_was_named_are_found_by_its_code_alone(planted, monkeypatch):
    monkeypatch.setattr(beside, "_beside", beside.Beside())
    (planted / "asked_for.py").write_text(
        "import beside_it\ndef later(): import beside_it_later; return beside_it_later.NUMBER\n"
    )
    (planted / "beside_it.py").write_text("")
    (planted / "beside_it_later.py").write_text("NUMBER = 3\n")
    with pytest.raises(ConfigError, match="cannot import 'xgboost_that_nobody_has'"):
        load_named("xgboost_that_nobody_has:Walk")
    later = load_named("asked_for:later")
    assert importlib.util.find_spec("beside_it_later") is None
    monkeypatch.chdir("/")
    assert later() == 3
    assert beside.known() == ([str(planted)], ["asked_for", "beside_it", "beside_it_later"])
    sys.meta_path.remove(beside._beside)
    for name in beside.known()[1]:
        del sys.modules[name]
    assert not executed(planted)


def test_a_package_that_is_not_installed_is_not_found_in_the_current_folder(planted, monkeypatch):
    """A run may name an environment of one without being asked."""
    monkeypatch.setattr(beside, "_beside", beside.Beside())
    monkeypatch.setitem(INSTALL, "package_that_nobody_has", "a-package")
    (planted / "package_that_nobody_has.py").write_text((planted / "nle.py").read_text())
    with pytest.raises(NotInstalled, match="pip install"):
        load_named("package_that_nobody_has:Walk")
    assert not executed(planted)


def fugu(*command: str, module: bool = False) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "fugu"] if module else [str(Path(sys.executable).with_name("fugu"))]
    return subprocess.run([*program, *command], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("module", [False, True], ids=["fugu", "python -m fugu"])
@pytest.mark.parametrize(
    "command",
    [
        "list",
        "runs",
        "doctor",
        "check CartPole-v1",
        "bench vector cartpole --num-envs 2 --seconds 0.05 --peers",
        "train MiniGrid-Nowhere-v0",
        "train CartPole-v1 --steps 64 --num-envs 2 --horizon 8 --minibatch 16 --backend process --runs ../runs",
        "train cartpole --steps 64 --num-envs 2 --horizon 8 --minibatch 16 --runs ../runs",
        "sandbox",
    ],
)
def test_no_command_executes_what_lies_in_the_current_folder(planted, command, module):
    if module:  # Python itself looks there before fugu can say no
        (planted / "typing.py").unlink()
    fugu(*command.split(), module=module)
    assert not executed(planted)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_no_program_that_a_work_tree_names_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch = f"touch {tmp_path / 'executed'}"
    for command in (
        "init -q",
        f"config core.fsmonitor '{touch}'",
        f"config diff.external '{touch}'",
        f"config filter.theirs.clean '{touch}'",
        f"config diff.theirs.textconv '{touch}'",
        "add file .gitattributes",
        "-c user.name=me -c user.email=me commit -q -m first",
    ):
        if command.startswith("add"):
            (tmp_path / "file").write_text("one\n")
            (tmp_path / ".gitattributes").write_text("")
        subprocess.run(["git", "-c", "core.fsmonitor=false", *shlex.split(command)], check=True)
    (tmp_path / ".gitattributes").write_text("* filter=theirs diff=theirs\n")
    (tmp_path / "file").write_text("two\n")
    (tmp_path / "executed").unlink(missing_ok=True)
    with Commit() as commit:
        assert len(str((commit.found(tmp_path / "diff") or {})["commit"])) == 40
    assert not (tmp_path / "executed").exists()
