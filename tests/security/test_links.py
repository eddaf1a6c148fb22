"""Nothing outside a run's folder is written or deleted through it, and nothing in it is waited for: links, hard links, pipes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

import fugu
from fugu import files
from fugu.cli.main import main
from fugu.trainer import checkpoint

TINY = {"steps": 128, "num_envs": 4, "horizon": 8, "minibatch": 32, "threads": 1, "log.board": "off"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fugu.train("cartpole", runs=tmp_path_factory.mktemp("made"), name="made", **TINY).folder.at


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of somebody else's, of which nothing may change."""
    folder = tmp_path / "precious"
    for name in ("file", "env/env.py", ".tmp-1/file", "step_000000001/MANIFEST.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


WRITTEN = (
    *(
        "metrics.jsonl",
        "timing.jsonl",
        "config.toml",
        "config.tmp",
        "run.json",
        "origin.json",
        "origin.tmp",
        "origin.diff",
        "seal",
    ),
    *("output.txt", "failed.txt", "failed.tmp", "running", "running.tmp", "ended", "eval-128.json", "eval-128.tmp", ".lock"),
    *("checkpoints/.lock", "diverged.safetensors", "curves.png"),
)
FOLDERS = ("checkpoints", "checkpoints/best", "code", "videos", "events", "wandb")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRITTEN, *FOLDERS])
def test_no_command_writes_or_deletes_through_a_link(run, precious, name, capsys):
    before = contents(precious)
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(precious / "file" if name in WRITTEN else precious)
    commands = (
        f"train --resume {run} --steps 256 --board off --log.tensorboard",
        f"eval {run} --episodes 1",
        f"video {run} --max-frames 2",
        f"plot {run}",
        f"runs --runs {run.parent}",
    )
    for command in commands:
        code = main(command.split())
        said = capsys.readouterr().err
        assert code in (0, 1, 2) and len(said.splitlines()) < 4
        assert contents(precious) == before, f"{command}: {said}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl", "output.txt", ".lock", "checkpoints/.lock"])
def test_a_file_that_is_written_in_place_has_no_other_name(run, precious, name, capsys):
    before = contents(precious)
    (run / name).unlink(missing_ok=True)
    os.link(precious / "file", run / name)
    assert main(f"train --resume {run} --steps 256 --board off".split()) in ((0,) if name == "output.txt" else (1, 2))
    assert contents(precious) == before
    if name != "output.txt":
        assert "has another name elsewhere (a hard link)" in capsys.readouterr().err


def test_what_replaces_a_file_leaves_its_other_names_alone(tmp_path):
    (tmp_path / "one").write_text("mine")
    os.link(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two.tmp").symlink_to(tmp_path / "one")
    files.write(tmp_path / "two", "theirs")
    assert (tmp_path / "one").read_text() == "mine" and (tmp_path / "two").read_text() == "theirs"


def test_checkpoints_are_neither_written_nor_deleted_through_a_link(tmp_path, precious):
    before = contents(precious)
    (tmp_path / "checkpoints").symlink_to(precious)
    for attempt in (
        lambda: checkpoint.truncate(tmp_path / "checkpoints", 0),
        lambda: checkpoint.save(tmp_path / "checkpoints", 5, {}, {}),
    ):
        with pytest.raises(checkpoint.CheckpointError, match="is a link"):
            attempt()
    assert contents(precious) == before


READ = (
    *(
        "config.toml",
        "metrics.jsonl",
        "timing.jsonl",
        "run.json",
        "origin.json",
        "seal",
        "failed.txt",
        "diverged.safetensors",
        ".lock",
    ),
    *("checkpoints/.lock", "ended", "running", "code"),
)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device", "endless"])
@pytest.mark.parametrize("name", READ)
def test_nothing_in_a_run_is_waited_for(run, name, kind, capsys):
    path = run / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 43)  # of zeros, which take no room
    for command in (
        f"runs --runs {run.parent}",
        f"plot {run}",
        f"eval {run} --episodes 1",
        f"train --resume {run} --board off",
    ):
        assert main(command.split()) in (0, 1, 2)
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["MANIFEST.json", "state.json", "policy.safetensors"])
def test_nothing_in_a_checkpoint_is_waited_for(run, name, capsys):
    (folder,) = (run / "checkpoints").glob("step_*")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    for command in (
        f"runs --runs {run.parent}",
        f"eval {run} --episodes 1",
        f"train --resume {run} --board off",
        f"ratings {run}",
    ):
        assert main(command.split()) in (0, 1, 2)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["policy.safetensors", "state.json", "pages"])
def test_a_file_that_no_memory_could_hold_is_not_read_to_its_end(run, name):
    """Its size is as the manifest says. Of zeros, it takes no room."""
    size, (folder,) = 1 << 42, (run / "checkpoints").glob("step_*")
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    if name == "pages":
        page = {"name": f"{'0' * 32}-{size}.safetensors", "size": size, "sha256": "0" * 64}
        manifest["pages"], path = [page], run / "checkpoints" / "pages" / page["name"]
        path.parent.mkdir()
    else:
        manifest["files"][name]["size"], path = size, folder / name
    with path.open("wb") as file:
        file.truncate(size)
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    manifest["sha256"] = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.warns(RuntimeWarning, match="holds 4398.0 GB, and this machine has"):
        assert main(f"train --resume {run} --steps 256 --board off".split()) == 1
    if name == "pages":  # which acting does not need
        assert main(f"eval {run} --episodes 1".split()) == 0


def test_links_that_wandb_makes_are_no_reason_to_refuse_a_run(run, precious, capsys):
    before, logs = contents(precious), run / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (run / "wandb" / "latest-run").symlink_to("offline-run-1")
    (logs / "debug-core.log").symlink_to(precious / "file")  # in the user's cache
    assert main(f"eval {run} --episodes 1".split()) == 0 and main(f"train --resume {run} --steps 256 --board off".split()) == 0
    assert contents(precious) == before
    elsewhere = (
        run / "wandb" / "out",
        logs / "other.log",
        logs.parent / "debug-core.log",
        run / "wandb" / "run-2" / "logs" / "debug-core.log",
    )
    for path in elsewhere:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(precious)
        assert main(f"train --resume {run} --steps 384 --board off".split()) == 2
        assert f"{path.name} is a link" in capsys.readouterr().err
        path.unlink()
