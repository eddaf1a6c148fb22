"""The commands: quick help, exit codes, what they print, and that nothing ends in a traceback."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.timing import in_time

import fugu
from fugu.cli import autotune as autotune_command
from fugu.cli.doctor import Item, _cuda, _extras, gpu_item, torch_item
from fugu.cli.extras import PURPOSES
from fugu.cli.main import COMMANDS, main
from fugu.cli.options import full_names, take_env_kwargs
from fugu.errors import GpuError
from fugu.trainer.config import TrainConfig
from fugu.vector.autotune import Trial, Tuning
from fugu.vector.config import VectorConfig

ROOT = Path(__file__).parents[2]
FUGU = [sys.executable, "-m", "fugu"]
HEAVY = ("torch", "gymnasium", "numpy", "rich", "tyro")


def test_help_answers_at_once_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from fugu.cli.main import main; rc = main(sys.argv[1:]); "
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr); sys.exit(rc)"
    )
    for arguments in ([], ["--help"], ["--version"]):
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
            seconds.append(time.perf_counter() - start)
            assert done.returncode == 0 and done.stderr.strip() == "[]"
            assert "fugu" in done.stdout
        in_time(min(seconds), 0.5)


@pytest.mark.parametrize(
    "command", [["train", "--help"], ["play", "--help"], ["runs"], ["plot", "--help"], ["new", "policy", "-h"]]
)
def test_what_does_not_compute_does_not_import_torch(command: list[str], tmp_path: Path) -> None:
    code = "import sys; from fugu.cli.main import main; rc = main(sys.argv[1:]); sys.exit(rc or 3 * ('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(name in text and line in text for name, (_, line) in COMMANDS.items())
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fugu {fugu.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: fugu {command}" in text
    assert "(default:" in text or "(required)" in text
    assert "--no-" not in text.replace("--no-overlap", "")  # which takes back what a file of --config says


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["chek", "CartPole-v1"], "check"),
        (["bench", "vectr"], "vector"),
        (["new", "enf"], "env"),
        (["check", "CartPole-v1", "--setps", "3"], "--steps"),
        (["check", "CartPole-v1", "--steps", "many"], "--steps"),
        (["autotune", "CartPole-v1", "--num-env", "3"], "--num-envs"),
        (["bench", "vector", "--bakend", "serial"], "--backend"),
        (["bench", "vector", "--backend", "seriall"], "serial"),
        (["list", "--jsn"], "--json"),
        (["doctor", "--jsn"], "--json"),
        (["new", "env", "x.py", "--mutli"], "--multi"),
        (["check", "CartPol-v1"], "CartPole-v1"),
        (["check", "fugu.errors:FuguEror"], "FuguError"),
        (["bench", "vector", "--num-envs", "6", "--batch-size", "4"], "batch_size=3"),
        (["check"], "ENV"),
        (["bench"], "bench vector"),
    ],
)
def test_a_typo_gets_a_suggestion_and_exit_code_two(
    arguments: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert suggestion in err and "Traceback" not in err and out == ""


def test_check_of_a_sound_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "--steps", "100"]) == 0
    text = capsys.readouterr().out
    assert "no findings" in text and "steps per second" in text and "Discrete(2)" in text


BROKEN = """
import gymnasium, numpy as np
from gymnasium import spaces

class Env(gymnasium.Env):
    observation_space = spaces.Dict(map=spaces.Box(0, 255, (11, 11), np.uint8))
    action_space = spaces.Discrete(2)

    def __init__(self, fill=0.0):
        print("an environment that talks")
        self.fill = fill

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"map": np.full((11, 11), self.fill)}, {}

    def step(self, action):
        return {"map": np.full((11, 11), self.fill)}, 0.0, False, False, {}
"""


def test_check_prints_findings_with_fixes_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken_env.py").write_text(BROKEN)
    name = f"{tmp_path}/broken_env.py:Env"
    assert main(["check", name, "--steps", "20"]) == 1
    text = capsys.readouterr().out
    assert "obs/map: space says uint8 (11, 11), reset() returned float64 (11, 11)" in text
    assert "fix: return obs.astype(np.uint8)" in text and "talks" not in text
    assert main(["check", name, "--steps", "20", "--json", "--env.fill", "300"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False and report["facts"]["steps"] == 20
    assert {"severity", "where", "problem", "fix"} == set(report["findings"][0])
    assert any("int64" in finding["problem"] for finding in report["findings"])


def test_constructor_arguments_are_taken_from_the_command_line() -> None:
    rest, kwargs = take_env_kwargs(
        [
            "E",
            "--env.size",
            "16",
            "--steps",
            "3",
            "--env.name=a b",
            "--env.low",
            "-1.5",
            "--env.fast",
            "--env.grid-size",
            "[1, 2]",
        ]
    )
    assert rest == ["E", "--steps", "3"]
    assert kwargs == {"size": 16, "name": "a b", "low": -1.5, "fast": True, "grid_size": [1, 2]}
    assert take_env_kwargs(["--env.on", "false"])[1] == {"on": False}


@pytest.mark.parametrize("multi", [False, True])
def test_a_new_environment_is_sound(multi: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if multi:
        pytest.importorskip("pettingzoo")
    path = tmp_path / "sub" / ("my_team.py" if multi else "my_env.py")
    assert main(["new", "env", str(path), *(["--multi"] if multi else [])]) == 0
    name = "MyTeam" if multi else "MyEnv"
    assert f"fugu check {path}:{name}" in capsys.readouterr().out
    assert len(path.read_text().splitlines()) < (60 if multi else 40)
    report = fugu.check_env(f"{path}:{name}")
    assert report.findings == [], str(report)
    assert main(["check", f"{path}:{name}", "--steps", "50"]) == 0


def test_new_environment_takes_a_name_and_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.py"
    assert main(["new", "env", str(path), "--name", "Maze"]) == 0
    assert "class Maze(" in path.read_text()
    path.write_text("mine")
    assert main(["new", "env", str(path)]) == 1
    assert path.read_text() == "mine" and "left alone" in capsys.readouterr().err
    assert main(["new", "env", str(tmp_path / "b")]) == 2
    assert main(["new", "env", str(tmp_path / "b.py"), "--name", "not a name"]) == 2
    assert not (tmp_path / "b.py").exists()


def test_what_autotune_prints_for_training_is_understood_there(monkeypatch, capsys) -> None:
    best = VectorConfig(num_envs=8, backend="process", num_workers=4, batch_size=2, order="first_finished", isolate=True)
    monkeypatch.setattr(
        autotune_command, "apart", lambda *_, **__: Tuning("'CartPole-v1'", (Trial("best", best, 1.0, rates=[1.0]),), best)
    )
    assert main(["autotune", "CartPole-v1"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["train"])
    words = full_names(line.split()[4:], TrainConfig)
    assert words[words.index("--vector.batch-size") + 1] == "2" and words.count("--vector.isolate") == 1


def test_autotune_prints_the_line_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["autotune", "CartPole-v1", "--num-envs", "1", "--seconds", "0.02"]) == 0
    text = capsys.readouterr().out
    assert "fugu.vector.make('CartPole-v1', 1, backend='serial')" in text
    assert "fugu bench vector CartPole-v1 --num-envs 1 --backend serial" in text
    assert "fugu train CartPole-v1 --num-envs 1 --backend serial" in text
    assert main(["autotune", "CartPole-v1", "--num-envs", "1", "--seconds", "0.02", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == {"num_envs": 1, "backend": "serial"}


def test_bench_measures_the_setting_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "vector", "--num-envs", "2", "--seconds", "0.02", "--json"]
    assert main([*arguments, "--backend", "process", "--num-workers", "2"]) == 0
    trials = json.loads(capsys.readouterr().out)["trials"]
    assert [trial["name"] for trial in trials] == ["serial", "process num_workers=2"]
    assert all(trial["steps_per_second"] > 0 and trial["error"] is None for trial in trials)


def test_bench_can_measure_gymnasium_beside(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "vector", "--num-envs", "2", "--seconds", "0.02", "--json", "--backend", "serial", "--peers"]
    assert main(arguments) == 0
    trials = {trial["name"]: trial for trial in json.loads(capsys.readouterr().out)["trials"]}
    assert trials["Gymnasium SyncVectorEnv"]["steps_per_second"] > 0, trials
    assert trials["Gymnasium AsyncVectorEnv"]["steps_per_second"] > 0, trials


def test_doctor_finds_this_machine_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    items = {item["name"]: item for item in report["items"]}
    assert report["ok"] and {"Python", "torch", "cores", "shared memory", "process backend"} <= set(items)
    assert items["process backend"]["status"] == "ok" and items["fugu"]["found"].startswith(fugu.__version__)


def test_doctor_steps_an_environment_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    item = gpu_item("cpu", "an emulated card")
    assert item.status == "ok" and "compiled and stepped" in item.found
    monkeypatch.setattr("fugu.vector.device.DeviceVec.step", lambda *_: None)
    assert gpu_item("cpu", "a card that does nothing").status == "broken"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    item = gpu_item("cuda", "a card that is gone")
    assert item.status == "warning" and "GpuError" in item.found and item.fix


def test_doctor_says_what_a_gpu_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise GpuError("not found here")

    monkeypatch.setattr("fugu.gpu.libraries.nvrtc_version", missing)
    monkeypatch.setattr("fugu.gpu.libraries.driver_version", lambda: "12.8")
    for gpus, status in (([], "info"), (["a card"], "warning")):
        monkeypatch.setattr("fugu.cli.doctor._gpus", lambda _, gpus=gpus: gpus)
        monkeypatch.setattr("fugu.cli.doctor.gpu_item", lambda device, name: Item(device, "ok", name))
        items = {item.name: item for item in _cuda()}
        assert items["CUDA driver"].found == "for CUDA 12.8"
        assert items["NVRTC"].status == status and bool(items["NVRTC"].fix) == bool(gpus)
        assert ("cuda:0" in items) == bool(gpus)


def test_doctor_fails_when_something_needed_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_memory(name: str) -> int:
        raise PermissionError("sealed off")

    monkeypatch.setattr("fugu.vector.launch.anonymous_file", no_memory)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "broken" in text and "sealed off" in text and "cores" in text


@pytest.mark.parametrize(
    ("version", "cuda", "driver", "gpus", "status", "part"),
    [
        ("2.13.0+cpu", None, False, [], "ok", "no GPU (fine)"),
        ("2.13.0+cu130", "13.0", True, ["H200"], "ok", "H200"),
        ("2.13.0+cpu", None, True, [], "warning", "has an NVIDIA driver"),
        ("2.13.0", "13.0", True, [], "warning", "no GPU that torch can use"),
        ("2.7.1", None, False, [], "warning", "tested are 2.8"),
        ("2.14.0a0+git1234", None, False, [], "warning", "2.14"),
    ],
)
def test_doctor_judges_torch(version: str, cuda: Any, driver: bool, gpus: list[str], status: str, part: str) -> None:
    item = torch_item(version, cuda, driver, gpus)
    assert item.status == status and part in item.found
    assert bool(item.fix) == (status == "warning")


def test_doctor_and_pyproject_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["optional-dependencies"])
    listed = {item.name: item for item in _extras()}
    assert set(wanted) <= set(listed) and list(PURPOSES) == wanted
    assert all((item.status == "ok") == (item.fix == "") for item in listed.values())
    assert listed["plot"].status == "ok"
    assert "torch>=2.8,<2.14" in project["dependencies"]


def test_errors_are_one_message_and_a_traceback_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "NoSuch-v0"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert main(["check", "NoSuch-v0", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*FUGU, "list"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.stderr == "" and done.returncode == 141


@pytest.mark.parametrize("command", [["list"], ["--help"], ["doctor", "--help"], ["list", "CartPole", "--json"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(command: list[str], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run([*FUGU, *command], stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.stderr == "the output cannot be written: No space left on device\n" and done.returncode == 1


def test_closed_output_is_no_traceback() -> None:
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *FUGU, "doctor", "--help"], stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in done.stderr and done.returncode == 0


def test_ctrl_c_is_one_line_and_exit_code_130(tmp_path: Path) -> None:
    slow = "import time\nclass Env:\n    def __init__(self):\n        print('here', flush=True); time.sleep(60)\n"
    (tmp_path / "slow.py").write_text(slow)
    process = subprocess.Popen(
        [*FUGU, "check", "slow.py:Env"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    began = time.perf_counter()
    _, err = process.communicate(timeout=50)
    took = time.perf_counter() - began
    assert process.returncode == 130 and err.strip() == "interrupted"
    in_time(took, 10)


@pytest.mark.parametrize("name", ["state", "params", "action", "obs"])
def test_a_struct_cannot_have_the_name_of_a_part_of_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "env", "--native", str(tmp_path / f"{name}.h")]) == 2
    struct = name.capitalize()
    said = f"the struct cannot be called {struct!r}, as a part of it is; choose another with --name {struct}Env\n"
    assert capsys.readouterr().err == said and list(tmp_path.iterdir()) == []
    assert main(["new", "env", "--native", str(tmp_path / f"{name}.h"), "--name", f"{struct}Env"]) == 0


def test_commands_to_type_survive_a_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my envs" / "corridor.h"
    for arguments in (["new", "env", "--native", str(path)], ["build", str(path)]):
        assert main(arguments) == 0
        typed = [line.partition("#")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  fugu")]
        assert typed and all(str(path) in shlex.split(line) for line in typed)


def test_modules_in_the_current_folder_are_found(tmp_path: Path) -> None:
    assert main(["new", "env", str(tmp_path / "corridor_here.py")]) == 0
    command = [
        sys.executable,
        "-c",
        "import sys; sys.path = sys.path[1:]; from fugu.cli.main import main; sys.exit(main(sys.argv[1:]))",
    ]
    done = subprocess.run(
        [*command, "check", "corridor_here:CorridorHere", "--steps", "20"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_warning_is_one_line_without_where_it_came_from(tmp_path: Path) -> None:
    script = "import warnings; from fugu.cli.main import main; main(['--version']); warnings.warn('half full')"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert out.stderr == "warning: half full\n"


@pytest.mark.parametrize(("own", "found"), [(None, "passive"), ("active", "active")])
def test_threads_of_torch_wait_asleep_unless_told_otherwise(own, found, monkeypatch, capsys):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    main(["--version"])
    assert os.environ["OMP_WAIT_POLICY"] == found


@pytest.mark.parametrize("path", ["", "."])
@pytest.mark.parametrize(
    ("arguments", "example"), [(["env"], "my_env.py"), (["env", "--native"], "my_env.h"), (["policy"], "my_policy.py")]
)
def test_what_is_no_file_name_gets_an_example(
    path: str, arguments: list[str], example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", *arguments, path]) == 2
    kind = "C++ header" if "--native" in arguments else "Python file"
    assert capsys.readouterr().err == f"{path!r} must be the name of a {kind}; try {example}\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/sealed/x"), "/sealed/x: Permission denied"),
        (IsADirectoryError(21, "Is a directory", "x"), "x: Is a directory"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (OSError("no number at all"), "no number at all"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("fugu.cli.list.main", refuse)
    assert main(["list"]) == 1
    assert capsys.readouterr().err == f"{said}\n"
    assert main(["list", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err and err.endswith(f"{said}\n")


def test_a_file_in_the_place_of_a_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["new", "env", str(tmp_path / "file" / "sub" / "my_env.py")]) == 1
    assert capsys.readouterr() == ("", f"{tmp_path}/file/sub/my_env.py cannot be written: Not a directory\n")


def test_a_current_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    done = subprocess.run(["sh", "-c", script, "sh", *FUGU, "list"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "the current folder: No such file or directory\n")
