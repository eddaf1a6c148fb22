"""Code that a run names is executed if this user made the run in this place, asked for it, or named it; never otherwise."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import fugu
from fugu.cli.main import main
from fugu.emulation.factory import load_named
from fugu.emulation.place import from_here, title
from fugu.errors import ConfigError
from fugu.run import seal
from fugu.run.config_file import from_file
from fugu.run.label import Label, write_label
from fugu.run.overview import overviews
from fugu.run.run import Run
from fugu.run.trust import Untrusted

TINY = {"steps": 128, "num_envs": 4, "horizon": 8, "minibatch": 32, "threads": 1, "log.board": "off", "backend": "serial"}
ENV = """
import gymnasium as gym
import numpy as np
from lengths import LENGTH
{more}
class Walk(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, ({size},), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros({size}, np.float32), {{}}
    def step(self, action):
        self.t += 1
        return np.zeros({size}, np.float32), {reward}, self.t >= LENGTH, False, {{}}
"""
ALGORITHM = """
import dataclasses
from fugu.algorithm.a2c import A2C

@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(A2C.Config):
    coef: float = 0.1
    "Nothing"

class Mine(A2C):
    Config = Config

    def finish(self, batch):
        return {"loss/mine": batch["value"].mean() * self.settings.coef}
"""
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.hidden_size = 8
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def encode(self, obs):
        return torch.tanh(self.first(obs))

    def decode(self, hidden):
        out = self.last(hidden)
        return out[:, :2], out[:, 2]
"""
MARKING = "import pathlib\npathlib.Path({!r}).write_text('executed')\n"


def write_env(folder: Path, name: str = "walk.py", *, size: int = 2, reward: float = 1.0, more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lengths.py").write_text("LENGTH = 5\n")
    file = folder / name
    file.write_text(ENV.format(size=size, reward=reward, more=more))
    return file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with an environment in a file. Not to be changed: see ``elsewhere``."""
    folder = tmp_path_factory.mktemp("made")
    return fugu.train(f"{write_env(folder)}:Walk", runs=folder / "runs", **TINY)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def elsewhere(made: Run, tmp_path: Path) -> Path:
    """The run copied to another folder, with the file it names gone."""
    path = Path(shutil.copytree(made.folder.at, tmp_path / "elsewhere"))
    rename(path, str(made.folder.at.parents[1] / "walk.py"), str(tmp_path / "gone" / "walk.py"))
    return path


def rename(run: Path, old: str, new: str) -> None:
    config = run / "config.toml"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))


def test_a_run_made_here_is_used_without_being_asked_for(made, capsys):
    assert fugu.Run(made.path).evaluate(2).mean == 5
    assert capsys.readouterr().err == ""


def test_a_moved_run_names_its_code_and_runs_from_its_own_copies_once_asked_for(elsewhere, capsys):
    with pytest.raises(Untrusted) as refused:
        fugu.Run(elsewhere).evaluate(2)
    assert all(word in str(refused.value) for word in ("gone/walk.py:Walk", "code/env/lengths.py", "--trust-code"))
    assert main(["eval", str(elsewhere), "--episodes", "2"]) == 2
    capsys.readouterr()
    assert main(["eval", str(elsewhere), "--episodes", "2", "--trust-code"]) == 0
    said = capsys.readouterr()
    assert "mean return   5.00" in said.out and "walk.py is not there; using the run's own copy" in said.err
    assert main(["train", "--resume", str(elsewhere), "--steps", "256"]) == 2
    assert "--trust-code" in capsys.readouterr().err
    assert main(["train", "--resume", str(elsewhere), "--steps", "256", "--trust-code", "--log.board", "off"]) == 0
    assert fugu.Run(elsewhere).evaluate(2).mean == 5  # whoever trains on has asked for it
    assert not [*elsewhere.rglob("__pycache__")]


def test_so_does_one_that_was_only_renamed(made, tmp_path):
    shutil.copytree(made.folder.at, tmp_path / "one")
    assert fugu.Run(made.path).gate.made_here
    assert not fugu.Run(tmp_path / "one").gate.made_here


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "builtins:exec", "__main__:Walk"])
@pytest.mark.parametrize("trust", [False, True])
def test_a_name_that_is_no_environment_is_never_called(made, elsewhere, tmp_path, name, trust):
    rename(elsewhere, str(tmp_path / "gone" / "walk.py") + ":Walk", name)
    text = (elsewhere / "config.toml").read_text()
    command = f"touch {tmp_path / 'executed'}"
    (elsewhere / "config.toml").write_text(text.replace("seed = 0", f'env_kwargs = {{command = "{command}"}}\nseed = 0', 1))
    with pytest.raises(ConfigError) as refused:
        fugu.Run(elsewhere, trust_code=trust).evaluate(1)
    assert name in str(refused.value) and isinstance(refused.value, Untrusted) != trust
    assert trust or command in str(refused.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("change", ["copy", "more", "settings"])
def test_a_change_of_what_it_would_execute_breaks_the_seal(tmp_path, change):
    folder = tmp_path / "here"
    run = fugu.train(f"{write_env(folder)}:Walk", runs=folder / "runs", **TINY)
    assert fugu.Run(run.path).gate.made_here
    if change == "copy":
        (run.path / "code" / "env" / "lengths.py").write_text("LENGTH = 6\n")
    elif change == "more":
        (run.path / "code" / "env" / "numpy.py").write_text("")
    else:
        config = run.folder.config
        config.write_text(config.read_text().replace("seed = 0", "env_kwargs = {size = 3}\nseed = 0", 1))
    with pytest.raises(Untrusted, match="changed since"):
        fugu.Run(run.path).evaluate(1)


def test_another_user_is_asked(made, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(Untrusted, match="no key of yours"):
        fugu.Run(made.path).evaluate(1)
    seal.seal(b"a run of theirs")
    with pytest.raises(Untrusted, match="somebody else made it"):
        fugu.Run(made.path).evaluate(1)


def test_a_link_among_the_copies_is_refused_whoever_asks(elsewhere, tmp_path):
    other = tmp_path / "other.py"
    other.write_text(MARKING.format(str(tmp_path / "executed")))
    copy = elsewhere / "code" / "env" / "walk.py"
    copy.unlink()
    copy.symlink_to(other)
    for trust in (False, True):
        with pytest.raises(ConfigError, match="must be a plain file|is a link"):
            fugu.Run(elsewhere, trust_code=trust).evaluate(1)
    shutil.rmtree(elsewhere / "code")
    (elsewhere / "code").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is a link"):
        fugu.Run(elsewhere, trust_code=True).evaluate(1)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("role", ["algorithm", "policy"])
def test_looking_at_a_run_executes_none_of_it(made, elsewhere, tmp_path, role):
    hostile = tmp_path / "hostile.py"
    hostile.write_text(MARKING.format(str(tmp_path / "executed")))
    if role == "algorithm":
        rename(elsewhere, 'algorithm = "ppo"', f'algorithm = "{hostile}:Mine"')
    else:
        rename(elsewhere, 'net = "default"', f'net = "{hostile}:Mine"')
    run = fugu.Run(elsewhere)
    assert run.metrics() and run.plot(tmp_path / "curves.png").exists()
    assert overviews(tmp_path)[0].state == "done"
    assert overviews(tmp_path)[0].algorithm == (str(from_here(f"{hostile}:Mine")) if role == "algorithm" else "ppo")
    with pytest.raises(Untrusted, match=rf"{role}: {hostile}:Mine"):
        run.evaluate(1)
    with pytest.raises(Untrusted, match=rf"{role}: {hostile}:Mine"):
        run.resume(steps=256)
    assert not (tmp_path / "executed").exists()


def test_a_command_given_in_a_run_finds_no_modules_there(elsewhere, tmp_path, monkeypatch):
    for folder in (elsewhere, elsewhere / "code" / "env"):
        (folder / "hostile.py").write_text(MARKING.format(str(tmp_path / "executed")))
        monkeypatch.chdir(folder)
        with pytest.raises(ConfigError, match="cannot import 'hostile'"):
            load_named("hostile:Walk")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("env", "settings", "executed"),
    [
        ("coding", {"min_level": 0}, "programs that its policy writes"),
        ("fugu.envs.teams:with_state", {"of": "my.module:env"}, "my.module:env"),
        ("fugu.envs.teams:with_state", {"of": ["my.module:env"]}, "my.module:env"),
        ("fugu.envs.atari:make", {"game": "GymV21Environment-v0", "env_id": "my.module:Env-v0"}, "GymV21Environment-v0"),
        ("fugu.envs:fugu/../code/env/walk.py:Walk", {}, "fugu.envs:fugu/../code/env/walk.py:Walk"),
        ("GymV21Environment-v0", {"env_id": "my.module:Env-v0"}, "GymV21Environment-v0"),
        ("my.module:Env-v0", {}, "my.module:Env-v0"),
        ("some/where/my_env.so", {}, "some/where/my_env.so"),
        ("fugu.cli.main:main", {"argv": ["--version"]}, "fugu.cli.main:main"),
        ("Ant-v5", {"xml_file": "hostile.xml"}, "Ant-v5, whose settings name files or code"),
        ("NetHackScore-v0", {"savedir": "/home/somebody"}, "NetHackScore-v0, whose settings name files"),
        ("NetHackScore-v0", {"savedir": ".."}, "NetHackScore-v0, whose settings name files"),
        ("Ant-v5", {"weights": "hostile.h5"}, "Ant-v5, whose settings name files or code"),
        ("Ant-v5", {"parts": {"../hostile": 1}}, "Ant-v5, whose settings name files or code"),
        ("fugu.envs.teams:with_state", {"of": "coding", "min_level": 0}, "programs that its policy writes"),
        ("fugu.envs.atari:make", {"game": "Ant-v5", "xml_file": "ant.xml"}, "Ant-v5 with the settings of an Atari game"),
        ("fugu.envs.atari:make", {"game": "ALE/Pong-v5", "rom": {"at": ["~/pong"]}}, "fugu.envs.atari:make, whose settings"),
        ("FrozenLake-v1", {"desc": ["SFFF", "FFFG"], "map_name": "4x4", "render_mode": "rgb_array"}, None),
        ("Ant-v5", {"ctrl_cost_weight": 0.5, "version": "v1.5"}, None),
        ("coding", {"tasks": "my/tasks.jsonl"}, None),
        ("coding", {"level": 2}, None),
        ("fugu.envs.teams:with_state", {"of": "mpe2.simple_spread_v3:parallel_env"}, None),
        ("fugu.envs.atari:make", {"game": "ALE/Pong-v5"}, None),
        ("fugu.envs:fugu/Memory-v0", {}, None),
        ("CartPole-v1", {}, None),
    ],
)
def test_what_settings_make_a_run_execute_counts(tmp_path, env, settings, executed):
    from fugu.run.store import RunFolder
    from fugu.run.trust import Gate

    gate = Gate(RunFolder(tmp_path), {"env": env, "env_kwargs": settings})
    assert (executed is None) == (not gate.executes)
    if executed is not None:
        with pytest.raises(Untrusted, match=f"env: {executed}"):
            gate.check()


def test_an_environment_that_is_given_does_not_vouch_for_the_settings_of_the_run(elsewhere):
    text = (elsewhere / "config.toml").read_text()
    (elsewhere / "config.toml").write_text(text.replace("seed = 0", "env_kwargs = {min_level = 0}\nseed = 0", 1))
    with pytest.raises(Untrusted, match="programs that its policy writes"):
        fugu.Run(elsewhere, env="coding")


def test_a_refusal_hides_nothing(made, elsewhere, tmp_path):
    rename(elsewhere, str(tmp_path / "gone" / "walk.py") + ":Walk", "a.b:C\\u001b[2K\\n  policy: default")
    with pytest.raises(Untrusted) as refused:
        fugu.Run(elsewhere).evaluate(1)
    assert r"env: a.b:C\x1b[2K\n" in str(refused.value) and len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.tmp", "eval-128.json"])
def test_nothing_is_written_through_a_link(elsewhere, tmp_path, name):
    (tmp_path / "precious").write_text("mine")
    (elsewhere / name).unlink(missing_ok=True)
    (elsewhere / name).symlink_to(tmp_path / "precious")
    run = fugu.Run(elsewhere, trust_code=True)
    for attempt in (lambda: run.resume(steps=256), lambda: run.evaluate(1)):
        with pytest.raises(ConfigError, match=f"{name} is a link, and would be written to"):
            attempt()


def test_nor_is_a_plot(elsewhere, tmp_path):
    (tmp_path / "precious").write_text("mine")
    (elsewhere / "curves.png").symlink_to(tmp_path / "precious")
    assert not fugu.Run(elsewhere).plot().is_symlink()
    assert (tmp_path / "precious").read_text() == "mine"


def test_code_that_is_named_on_the_command_line_is_asked_for(elsewhere, tmp_path, capsys):
    moved = write_env(tmp_path / "moved", "walk_again.py", reward=2.0)
    command = ["eval", str(elsewhere), "--episodes", "2", "--env", f"{moved}:Walk"]
    assert main(command) == 0
    assert "mean return   10.00" in capsys.readouterr().out
    assert main(["train", "--resume", str(elsewhere), "--steps", "256", "--env", f"{moved}:Walk", "--board", "off"]) == 0
    again = fugu.Run(elsewhere)
    assert again.config.env == f"{moved}:Walk" and again.evaluate(1).mean == 10
    assert (elsewhere / "code" / "env" / "walk_again.py").exists()


@pytest.mark.parametrize("end", ["# end", ""])
def test_a_config_that_lies_in_a_run_is_asked_for_even_if_it_is_cut_off(elsewhere, tmp_path, end):
    hostile = tmp_path / "hostile.py"
    hostile.write_text(MARKING.format(str(tmp_path / "executed")))
    (elsewhere / "part.toml").write_text(f'env = "{hostile}:Mine"\n{end}\n')
    with pytest.raises(Untrusted, match=f"env: {hostile}:Mine"):
        fugu.train(config=elsewhere / "part.toml", runs=tmp_path / "runs", **TINY)
    assert not (tmp_path / "executed").exists()


def test_an_environment_with_other_spaces_is_one_message(elsewhere, tmp_path):
    other = f"{write_env(tmp_path / 'other', size=3)}:Walk"
    said = r"does not fit: its observations are Box float32 \[3\], and the run's Box float32 \[2\]"
    with pytest.raises(ConfigError, match=said):
        fugu.Run(elsewhere, env=other).evaluate(1)
    with pytest.raises(ConfigError, match=said):
        fugu.Run(elsewhere).resume(env=other, steps=256)
    (elsewhere / "origin.json").write_text('{"spaces": ["none"]}')
    moved = f"{write_env(tmp_path / 'moved')}:Walk"
    assert fugu.Run(elsewhere, env=moved).evaluate(1).mean == 5


def test_resuming_with_a_class_does_not_vouch_for_the_file_it_stands_in_for(elsewhere):
    space: dict[str, Any] = {}
    exec(ENV.format(size=2, reward=1.0, more="").replace("from lengths import LENGTH", "LENGTH = 5"), space)
    fugu.Run(elsewhere).resume(env=lambda: space["Walk"](), steps=256, **{"log.board": "off"})
    with pytest.raises(Untrusted):
        fugu.Run(elsewhere).evaluate(1)


def test_an_edited_file_counts_where_the_run_was_made_and_its_copy_elsewhere(tmp_path, capsys):
    folder = tmp_path / "here"
    run = fugu.train(f"{write_env(folder, 'edited.py')}:Walk", runs=folder / "runs", **TINY)
    shutil.copytree(run.path, tmp_path / "there")
    write_env(folder, "edited.py", reward=3.0)
    name = fugu.Run(run.path).config.env
    assert name.means() == f"{folder / 'edited.py'}:Walk"  # type: ignore[attr-defined]
    said = capsys.readouterr().err
    assert "has changed since the run began and is used as it is now" in said
    copy = said.strip().rpartition("--env ")[2]
    assert fugu.Run(run.path, env=copy).evaluate(1).mean == 5
    assert fugu.Run(run.path, env=copy).config.env == f"{folder / 'edited.py'}:Walk"
    assert fugu.Run(tmp_path / "there", trust_code=True).evaluate(1).mean == 5
    assert "is not what the run began with; using the run's own copy" in capsys.readouterr().err


def test_an_algorithm_and_a_network_move_with_their_run(tmp_path, capsys):
    for name, text in (("my_algo", ALGORITHM), ("my_net", NET)):
        (tmp_path / f"{name}.py").write_text(text)
    settings = {**TINY, "algorithm": f"{tmp_path}/my_algo.py:Mine", "policy": f"{tmp_path}/my_net.py:Net"}
    run = fugu.train("cartpole", runs=tmp_path, **{**settings, "backend": "native"}, coef=0.5)
    assert from_file(run.folder.config, algorithm="ppo").algorithm == "ppo"
    path = str(shutil.copytree(run.path, tmp_path / "moved"))
    for name in ("my_algo", "my_net"):
        (tmp_path / f"{name}.py").unlink()
    command = ["train", "--resume", path, "--steps", "256", "--learning-rate", "0.002", "--board", "off"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "policy: " in said and "algorithm: " in said and "env: " not in said
    assert main([*command, "--trust-code"]) == 0
    moved = fugu.Run(path)
    assert moved.config.settings.coef == 0.5 and moved.config.optimizer.learning_rate == 0.002
    assert moved.config.algorithm == f"{tmp_path}/my_algo.py:Mine" and moved.evaluate(1).episodes == 1


def test_without_a_key_a_run_is_made_and_has_to_be_asked_for(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = fugu.train(f"{write_env(tmp_path)}:Walk", runs=tmp_path / "runs", **TINY)
    assert run.evaluate(1).mean == 5  # its code was named in this session
    with pytest.raises(Untrusted, match="no seal"):
        fugu.Run(run.path).evaluate(1)
    assert fugu.Run(run.path, trust_code=True).evaluate(1).mean == 5


def test_the_config_of_a_run_finds_its_code_as_the_run_does(elsewhere, tmp_path):
    path = elsewhere / "config.toml"
    with pytest.raises(Untrusted):
        from_file(path)
    env = from_file(path, trust_code=True).env
    assert (
        env.endswith("/walk.py:Walk")
        and Path(env.rpartition(":")[0]).read_bytes() == (elsewhere / "code/env/walk.py").read_bytes()
    )
    rename(elsewhere, f"{tmp_path / 'gone' / 'walk.py'}:Walk", "session:Walk")
    with pytest.raises(ConfigError, match=r"existed only in the session .* give it again: --env my_file.py:Walk"):
        from_file(path)
    assert from_file(path, "cartpole").env == "cartpole"


def test_a_training_by_the_copy_of_a_run_is_listed_by_its_file_alone(elsewhere, tmp_path):
    config = from_file(elsewhere / "config.toml", trust_code=True)
    assert title(config.env, {}) == "walk.py:Walk"


def test_a_file_that_is_gone_and_was_not_copied_is_one_message_with_what_to_do(elsewhere):
    shutil.rmtree(elsewhere / "code")
    with pytest.raises(ConfigError, match=r"names .*walk.py, which is not there, .* Say where it is now: --env file.py:Walk"):
        fugu.Run(elsewhere, trust_code=True).evaluate(2)


def test_an_option_in_the_place_of_code_in_a_config_is_enough(elsewhere, tmp_path):
    path, mark = elsewhere / "config.toml", tmp_path / "mark"
    (tmp_path / "evil.py").write_text(MARKING.format(str(mark)))
    rename(elsewhere, 'algorithm = "ppo"', f'algorithm = "{tmp_path}/evil.py:Mine"')
    rename(elsewhere, 'net = "default"', f'net = "{tmp_path}/evil.py:Net"')
    own = str(write_env(tmp_path / "own")) + ":Walk"
    with pytest.raises(Untrusted, match="policy: "):
        from_file(path, own, algorithm="ppo")
    assert from_file(path, own, algorithm="ppo", given=["policy"]).algorithm == "ppo"
    (tmp_path / "my_net.py").write_text(NET)
    words = ["cartpole", "--algorithm", "ppo", "--policy", f"{tmp_path}/my_net.py:Net", "--runs", str(tmp_path / "runs")]
    assert main(["train", "--config", str(path), *words, "--backend", "native", "--board", "off"]) == 0
    assert not mark.exists()


def test_a_logger_that_is_dropped_or_replaced_is_not_asked_for(tmp_path):
    logger = "class Sink:\n def __init__(self, *_): {}\n def write(self, *_): pass\n def close(self): pass\n"
    (tmp_path / "sink.py").write_text(logger.format("pass"))
    run = fugu.train("cartpole", runs=tmp_path, **{**TINY, "backend": "native"}, sink=f"{tmp_path}/sink.py:Sink")
    moved = str(shutil.copytree(run.path, tmp_path / "moved"))
    other = str(shutil.copytree(run.path, tmp_path / "other"))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "sink.py").write_text(logger.format("open(_[0] / 'mark', 'w').close()"))
    with pytest.raises(Untrusted, match="sink: "):
        fugu.Run(moved).resume(steps=256)
    assert fugu.Run(moved).resume(steps=256, sink=None).config.log.sink is None
    fugu.Run(other).resume(steps=256, sink=f"{tmp_path}/new/sink.py:Sink")
    assert (Path(other) / "mark").exists() and fugu.Run(other).gate.made_here
    assert (Path(other) / "code/sink/sink.py").read_text() == (tmp_path / "new" / "sink.py").read_text()


@pytest.mark.parametrize("trust", [False, True])
def test_a_compiled_library_is_never_loaded_from_a_run(elsewhere, tmp_path, trust):
    library = elsewhere / "code" / "env" / "walk.so"
    library.write_bytes(b"hostile")
    rename(elsewhere, str(tmp_path / "gone" / "walk.py") + ":Walk", str(library))
    with pytest.raises(ConfigError, match="build it from its source" if trust else "would execute"):
        fugu.Run(elsewhere, trust_code=trust).evaluate(1)


@pytest.mark.parametrize("given", [{}, {"env": "fugu.envs.teams:with_state"}], ids=["named by the run", "its maker is given"])
@pytest.mark.parametrize("trust", [False, True])
def test_nor_is_one_that_settings_name(elsewhere, tmp_path, trust, given):
    library = tmp_path / "walk.so"
    library.write_bytes(b"hostile")
    config = elsewhere / "config.toml"
    text = config.read_text().replace("seed = 0", f'env_kwargs = {{of = ["{library}"]}}\nseed = 0', 1)
    config.write_text(text)
    if not given:
        rename(elsewhere, str(tmp_path / "gone" / "walk.py") + ":Walk", "fugu.envs.teams:with_state")
    with pytest.raises(ConfigError, match="build it from its source" if trust else "would execute"):
        fugu.Run(elsewhere, trust_code=trust, **given).evaluate(1)


def test_what_a_run_logs_is_sent_to_nobody_who_was_not_asked_for(tmp_path, monkeypatch):
    run = fugu.train("cartpole", runs=tmp_path, **TINY)
    text = run.folder.config.read_text()
    run.folder.config.write_text(text.replace('wandb = "off"', 'wandb = "online"'))
    assert fugu.Run(run.path).evaluate(1).episodes == 1
    with pytest.raises(Untrusted, match="log.wandb: sends what it logs"):
        fugu.Run(run.path).resume(steps=256)
    assert fugu.Run(run.path).resume(steps=256, **{"log.wandb": "off"}).config.log.wandb == "off"


def test_nor_does_what_begins_as_a_run_that_somebody_else_made(tmp_path, capsys):
    """The missing runs of a group, and a training with the config of a run."""
    run = fugu.train("cartpole", runs=tmp_path, name="g-s0", **TINY)
    text = run.folder.config.read_text()
    run.folder.config.write_text(text.replace('wandb = "off"', 'wandb = "online"'))
    write_label(run.path, Label(group="g", seeds=(0, 1)))
    with pytest.raises(Untrusted, match="log.wandb: sends what it logs"):
        fugu.Group("g", tmp_path).resume()
    with pytest.raises(Untrusted, match="log.wandb: sends what it logs"):
        fugu.train(config=run.folder.config, runs=tmp_path / "new")
    command = ["train", "--config", str(run.folder.config), "--runs", str(tmp_path / "new"), "--board", "off"]
    assert main(command) == 2 and "log.wandb: sends what it logs" in capsys.readouterr().err
    assert main([*command, "--log.wandb", "off"]) == 0
    assert len(fugu.Group("g", tmp_path).resume(**{"log.wandb": "off"})) == 2
