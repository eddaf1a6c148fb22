"""Cases for ``test_fuzz.py``: runs that anybody may have made, checkpoints with right hashes and wrong content, flags, messages.

    python -m tests.security.fuzz FOLDER              does the cases that come line by line (KIND NUMBER), and says how each went
    python -m tests.security.fuzz FOLDER KIND NUMBER  does one again, and shows all of it

A case is all decided by its kind and number. It goes wrong with anything but exit code 0, 1 or 2 and a few plain lines; where something
is executed, imported from there, unpickled, or written elsewhere than in the folder of the case.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

import fugu
from fugu.cli.main import main
from fugu.config import field_paths
from fugu.trainer.config import member
from tests.security.messages import Hearing

MEMORY = 12 << 30
"""bytes of addresses: a size that is absurd shows"""
TINY = {"num_envs": 4, "horizon": 8, "minibatch": 32, "threads": 1, "log.board": "off", "seed": 3}
STEPS = 256
ALGORITHMS = {
    "ppo": "cartpole",
    "a2c": "cartpole",
    "sac": "pendulum",
    "dreamer": "cartpole",
    "mappo": "foraging",
    "safe_ppo": "safe_point",
    "self_play": "connect4",
    "grpo": "cartpole",
}
"""algorithms whose settings are tried -> an environment for each"""
REPLAYED = {
    "sac": ("--replay.start", "32", "--replay.ratio", "16"),
    "dreamer": ("--replay.start", "32", "--replay.ratio", "16", "--dreamer.size", "tiny"),
}
REPLAY = {"replay.start": 64, "replay.size": 4000, "replay.ratio": 16}
RUNS: dict[str, dict[str, Any]] = {
    "cartpole": {"env": "cartpole"},
    "memory": {"env": "memory", "policy.core": "lstm", "policy.normalize_observation": True, "optimizer.name": "muon"},
    "connect4": {"env": "connect4", "algorithm": "self_play"},
    "safe_point": {"env": "safe_point", "algorithm": "safe_ppo"},
    "snake": {"env": "snake", "policy.core": "mingru"},
    "CartPole-v1": {"env": "CartPole-v1", "backend": "serial"},
    "sac": {"env": "cartpole", "algorithm": "sac", "horizon": None, "replay.priority": 0.6, **REPLAY},
    "pendulum": {"env": "pendulum", "algorithm": "sac", "horizon": None, **REPLAY},
    "dreamer": {"env": "memory", "algorithm": "dreamer", "horizon": None, "minibatch": None, **REPLAY},
    "mappo": {"env": "foraging", "algorithm": "mappo"},
}
EXECUTING = (
    *(
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "os.forkpty",
        "pty.spawn",
        "subprocess.Popen",
        "pickle.find_class",
    ),
    *("ctypes.dlopen", "socket.connect", "code.__new__"),
)
CHANGING = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.truncate",
    "os.chmod",
    "os.link",
    "os.symlink",
    "os.mkdir",
    "shutil.rmtree",
)
COMMANDS = (
    "runs --runs {root}",
    "runs --runs {root} --json",
    "eval {run} --episodes 2 --num-envs 2",
    "eval {run} --episodes 1 --checkpoint best --greedy",
    "train --resume {run} --steps 288 --board off",
    "train --resume {run} --steps 288 --board lines",
    "train --config {run}/config.toml --steps 32 --board off --runs {root}",
    "plot {run}",
    "plot {run} --x time --metric kl --smooth 3",
    "play {run} --max-steps 3",
    "ratings {run}",
    "ratings {run} --json",
    "load",
    "eval latest --runs {root} --episodes 1",
)
HOSTILE: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        3,
        2**31,
        2**63,
        -(2**63),
        10**30,
        1e308,
        -1e308,
        1e-320,
        0.5,
        "",
        "x",
        "x" * 5000,
        "0",
        "nan",
        "none",
    ),
    *(
        [],
        {},
        [[]],
        [0],
        [[1, 2]],
        [None],
        {"x": 1},
        "os:system",
        "../../etc/passwd",
        "/dev/zero",
        "\x1b]0;title\x07\x1b[2J",
        "\u202eexe",
    ),
)
FLAG_VALUES = (
    *(
        "-1",
        "0",
        "1",
        "1e308",
        "-1e308",
        "9e18",
        "1e-320",
        "nan",
        "inf",
        "-inf",
        str(2**31),
        str(2**31 - 1),
        str(2**63),
        "9" * 6000,
    ),
    *(
        "",
        "none",
        "true",
        "false",
        "x" * 3000,
        "\x1b]0;title\x07",
        "\u202eexe",
        "[" * 300,
        "os:system",
        "../..",
        "/dev/zero",
        "0.5",
        "1_0",
    ),
)
watched: dict[str, Any] = {"folder": "", "found": []}


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what no case may do."""
    folder = watched["folder"]
    if not folder:
        return
    executes = event in EXECUTING and arguments[0] not in (None, "libnvidia-ml.so.1", "uname", "fc-list")
    loads = event in ("import", "compile") and str(arguments[1]).startswith(folder)
    if executes or loads:
        watched["found"].append(f"{event} {arguments!r:.200}")
    elif event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT)
        if writes and not isinstance(path, int) and not _may_write(os.fsdecode(path), folder):
            watched["found"].append(f"{event} {arguments!r:.200}")
    elif event in CHANGING and not isinstance(arguments[0], int) and not _may_write(os.fsdecode(arguments[0]), folder):
        watched["found"].append(f"{event} {arguments!r:.200}")


def _may_write(path: str, folder: str) -> bool:
    whole = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), os.path.basename(path))
    allowed = (folder, os.environ["HOME"], os.path.dirname(fugu.__file__), "/dev/null")
    return whole.startswith(tuple(map(os.path.realpath, allowed)))


# --- what is made of a good run ---


def make_runs(folder: Path) -> None:
    for name, settings in RUNS.items():
        given = {key: value for key, value in {**TINY, **settings}.items() if value is not None}
        fugu.train(runs=folder, name=name, steps=STEPS, **given)


def spoilt_json(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """Return ``value`` with one part of it replaced, left out or doubled."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        kind = chance.random()
        if kind < 0.15:
            return {name: inner for name, inner in value.items() if name != key}
        if kind < 0.25:
            return {**value, chance.choice(("x", "env", "\x1b[31m", "")): chance.choice(HOSTILE)}
        return {**value, key: spoilt_json(value[key], chance, depth + 1)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        kind = chance.random()
        if kind < 0.15:
            return value[:at] + value[at + 1 :]
        if kind < 0.3:
            return value + value[at : at + 1] * chance.choice((1, 100))
        return [*value[:at], spoilt_json(value[at], chance, depth + 1), *value[at + 1 :]]
    if isinstance(value, int | float) and chance.random() < 0.4:
        return chance.choice((-value, value + 1, value * 1e30, str(value), [value], int(value) * 2**40))
    if chance.random() < 0.05:
        deep: Any = 0
        for _ in range(500):
            deep = [deep]
        return deep
    return chance.choice(HOSTILE)


def spoilt_tensor(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    random_bytes = np.random.default_rng(chance.randrange(2**32))
    choices: list[Callable[[], torch.Tensor]] = [
        lambda: torch.full_like(tensor, float("nan") if tensor.is_floating_point() else chance.choice((0, 1, 127))),
        lambda: tensor.to(chance.choice((torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool, torch.bfloat16))),
        lambda: tensor.reshape(-1)[: tensor.numel() // 2],
        lambda: tensor.unsqueeze(0),
        lambda: torch.cat([tensor.reshape(-1), tensor.reshape(-1)]),
        lambda: tensor.new_zeros(()),
        lambda: tensor.new_zeros((0,)),
        lambda: tensor.new_zeros((1,) * 9),
        lambda: -tensor if tensor.dtype not in (torch.bool,) else ~tensor,
        lambda: tensor * 10**6 if tensor.is_floating_point() else tensor.new_full(tensor.shape, 1),
        lambda: (
            torch.full_like(tensor, chance.choice((float("inf"), -1e38, 1e38))) if tensor.is_floating_point() else tensor + 1
        ),
        lambda: (
            torch.from_numpy(random_bytes.integers(0, 256, max(1, tensor.nbytes), np.uint8)[: tensor.nbytes].copy())
            .view(tensor.dtype)
            .reshape(tensor.shape)
        ),
        lambda: _changed_byte(tensor, chance),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return chance.choice(choices)().contiguous()
        except RuntimeError:
            return tensor.new_zeros((3,))


def _changed_byte(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    data = tensor.reshape(-1).contiguous().clone().view(torch.uint8)
    for _ in range(chance.choice((1, 3, 20)) if data.numel() else 0):
        data[chance.randrange(data.numel())] = chance.choice((0, 1, 7, 127, 128, 255))
    return data.view(tensor.dtype).reshape(tensor.shape)


def spoil_checkpoint(run: Path, chance: random.Random) -> None:
    """Change what the newest checkpoint holds, and make its hashes right again."""
    folder = sorted((run / "checkpoints").glob("step_*"))[-1]
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        name = chance.choice(["state.json"] * 3 + sorted(manifest["files"]) + ["pages"] * 3 * ("pages" in manifest))
        if name == "pages":
            change_rows(run, manifest, chance.randrange(len(manifest["pages"])), lambda columns: spoil_tensors(columns, chance))
            continue
        if name == "state.json":
            (folder / name).write_text(json.dumps(spoilt_json(json.loads((folder / name).read_text()), chance)))
            continue
        tensors = load((folder / name).read_bytes())
        if not tensors:
            continue
        spoil_tensors(tensors, chance)
        (folder / name).write_bytes(save(tensors))
    if chance.random() < 0.15:
        manifest = spoilt_json(manifest, chance)
    seal_again(folder, manifest)


def spoil_tensors(tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    key, kind = chance.choice(sorted(tensors)), chance.random()
    if kind < 0.1:
        del tensors[key]
    elif kind < 0.15:
        tensors[chance.choice(("x", "\x1b[31m", "a/b", "adam.x", "muon.1.x", "muon.x", "x" * 1000))] = torch.zeros(3)
    elif kind < 0.2:
        tensors.clear()
    else:
        tensors[key] = spoilt_tensor(tensors[key], chance)


def change_rows(run: Path, manifest: Any, number: int, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the columns of a page of rows, and let the manifest name the changed one."""
    pages = run / "checkpoints" / "pages"
    columns = load((pages / manifest["pages"][number]["name"]).read_bytes())
    change(columns)
    data = save({name: column.contiguous() for name, column in columns.items()})
    digest = hashlib.sha256(data).hexdigest()
    page = {"name": f"{digest[:32]}-{len(data)}.safetensors", "size": len(data), "sha256": digest}
    (pages / page["name"]).write_bytes(data)
    manifest["pages"][number] = page


def seal_again(folder: Path, manifest: Any) -> None:
    if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict):
        for name, about in manifest["files"].items():
            if isinstance(about, dict) and name in ("state.json", *(path.name for path in folder.glob("*.safetensors"))):
                data = (folder / name).read_bytes()
                about.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        rest = {key: value for key, value in manifest.items() if key != "sha256"}
        manifest["sha256"] = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))


def spoil_folder(run: Path, chance: random.Random) -> None:
    """Change files of a run: lines of its config, metrics, notes; or put something else in their place."""
    config = run / "config.toml"

    def ours(path: Path) -> bool:
        return path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1 and path.stat().st_size < 1 << 20

    for _ in range(chance.choice((1, 1, 2, 3))):
        kind = chance.random()
        if kind < 0.45 and ours(config):
            config.write_text(spoilt_toml(config.read_text(errors="replace"), chance), errors="replace")
        elif kind < 0.6:
            file = run / chance.choice(("metrics.jsonl", "timing.jsonl", "run.json", "origin.json"))
            if ours(file):
                lines = file.read_text(errors="replace").splitlines() or [""]
                at = chance.randrange(len(lines)) if file.suffix == ".jsonl" else 0
                with contextlib.suppress(ValueError, RecursionError):
                    parsed = json.loads(lines[at] if file.suffix == ".jsonl" else file.read_text())
                    text = json.dumps(spoilt_json(parsed, chance))
                    file.write_text(
                        "\n".join([*lines[:at], text, *lines[at + 1 :]]) + "\n" if file.suffix == ".jsonl" else text
                    )
        else:
            paths = [path for path in sorted(run.rglob("*")) if ours(path)]
            spoil_file(chance.choice(paths), run, chance)


def spoil_file(file: Path, run: Path, chance: random.Random) -> None:
    data, kind = file.read_bytes(), chance.randrange(9)
    if kind == 0:
        file.write_bytes(data[: chance.randrange(len(data) + 1)])
    elif kind == 1:
        changed = bytearray(data or b"x")
        for _ in range(chance.choice((1, 5, 50))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        file.write_bytes(changed)
    elif kind == 2:
        file.write_bytes(random.Random(chance.random()).randbytes(chance.choice((0, 1, 100, 5000))))
    else:
        file.unlink()
        if kind == 3:
            os.mkfifo(file)
        elif kind == 4:
            file.mkdir()
        elif kind == 5:
            file.symlink_to(chance.choice((run.parent / "precious", Path("/dev/zero"), run, Path("nowhere"), file)))
        elif kind == 6:
            os.link(run.parent / "precious", file)
        elif kind == 7:
            with file.open("wb") as sparse:
                sparse.truncate(1 << 42)


def spoilt_toml(text: str, chance: random.Random) -> str:
    lines = text.splitlines() or [""]
    at = chance.randrange(len(lines))
    name = lines[at].partition("=")[0].strip() or "x"
    value = chance.choice(
        (
            *(json.dumps(value) for value in HOSTILE if value is not None),
            *(
                "[" * 2000,
                "9" * 6000,
                "nan",
                "-inf",
                "1979-05-27",
                "{a = {b = {}}}",
                "'''",
                '"\\u0000"',
                '"run/../x.so"',
                '"x.h"',
            ),
            *(
                '"code/env/x.py:X"',
                '"GymV21Environment-v0"',
                '"fugu.envs.teams:with_state"',
                '"coding"',
                '"cuda"',
                '"device"',
                '"online"',
            ),
        )
    )
    new = chance.choice(
        (f"{name} = {value}", f"{name} = {value}", f"x{name} = {value}", f"[{name}]", f"[{name}.a.b]\nc = {value}", "", value)
    )
    if chance.random() < 0.1:
        new = "\n".join(
            [
                new,
                f"env_kwargs = {{{chance.choice(('max_steps', 'command', 'xml_file', 'of', 'game', 'min_level'))} = {value}}}",
            ]
        )
    return "\n".join([*lines[:at], new, *lines[at + 1 :]]) + "\n"


# --- doing a case ---


def do(kind: str, number: int, folder: Path) -> dict[str, Any]:
    """Do a case with the runs in ``folder``; return what was wrong with it, if anything."""
    chance = random.Random(f"{kind} {number}")
    if kind == "messages":
        return {"kind": kind, "number": number, "wrong": hear(chance, folder)}
    case = folder / f"case-{os.getpid()}"
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    (case / "precious").write_text("mine")
    name = chance.choice(list(RUNS)) if kind != "flags" else "cartpole"
    run = Path(shutil.copytree(folder / "runs" / name, case / name))
    if kind == "checkpoint":
        spoil_checkpoint(run, chance)
    elif kind == "folder":
        spoil_folder(run, chance)
    line = (
        [word.format(run=run, root=case) for word in chance.choice(COMMANDS).split()]
        if kind != "flags"
        else flags(case, chance)
    )
    out, err, began = io.StringIO(), io.StringIO(), time.monotonic()
    os.chdir(case)
    wrong, code = "", None
    watched.update(folder=str(case), found=[])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            code = use(run) if line == ["load"] else main(line)
        except BaseException:
            wrong = traceback.format_exc()
    watched["folder"] = ""
    os.chdir(folder)
    said = err.getvalue()
    if not wrong and (code not in (0, 1, 2) or "Traceback" in said):
        wrong = f"exit code {code}: {said}"
    if bad := [c for c in out.getvalue() + said if not (c.isprintable() or c in "\n\t")]:
        wrong += f"control characters {bad[:5]!r} in {(out.getvalue() + said)[:2000]!r}"
    if len(said) > 6000:
        wrong += f"{len(said)} characters: {said[:500]}"
    if watched["found"]:
        wrong += f"it did {watched['found'][:5]}"
    if (case / "precious").read_text() != "mine":
        wrong += "it changed what is not the run's"
    return {
        "kind": kind,
        "number": number,
        "command": line,
        "code": code,
        "said": said[:600],
        "wrong": wrong,
        "seconds": time.monotonic() - began,
    }


hearing = Hearing()


def hear(chance: random.Random, folder: Path) -> str:
    """Let a worker say something wrong; return what was wrong with the answer, if anything."""
    try:
        hearing.ready()
        watched.update(folder=str(folder), found=[])
        wrong = hearing.case(chance, HOSTILE)
    except BaseException:
        wrong = traceback.format_exc()
        hearing.close()
    watched["folder"] = ""
    return f"{wrong} it did {watched['found'][:5]}" if watched["found"] else wrong


def use(run: Path) -> int:
    """Load the policy and act with it."""
    try:
        policy = fugu.load(run)
        policy(policy.observation_space.sample())
    except fugu.FuguError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    return 0


def flags(case: Path, chance: random.Random) -> list[str]:
    algorithm = chance.choice(list(ALGORITHMS))
    paths = [path for path in field_paths(member(algorithm)) if path not in (("steps",), ("target",))]
    sections = {path[0] for path in paths if len(path) > 1}
    paths = [path for path in paths if path not in {(section,) for section in sections}]
    path = chance.choice(paths)
    value = chance.choice(FLAG_VALUES)
    line = [
        "train",
        ALGORITHMS[algorithm],
        "--algorithm",
        algorithm,
        "--steps",
        "64",
        "--num-envs",
        "4",
        *REPLAYED.get(algorithm, ("--horizon", "8", "--minibatch", "32")),
        "--board",
        "off",
        "--runs",
        str(case),
    ]
    line += ["--threads", "1", "--backend", "native"] if path not in (("threads",), ("vector", "backend")) else []
    kind = chance.random()
    if kind < 0.75:
        return [*line, f"--{'.'.join(path).replace('_', '-')}", value]
    if kind < 0.85:
        return [*line, f"--env.{chance.choice(('max_steps', 'x', 'length', ''))}", value]
    command = chance.choice(
        ("eval cartpole", "plot cartpole", "runs", "play cartpole --max-steps 2", "ratings cartpole", "list", "nonsense")
    )
    known = (
        "runs",
        "episodes",
        "num-envs",
        "seed",
        "checkpoint",
        "metric",
        "smooth",
        "x",
        "tag",
        "fps",
        "max-steps",
        "json",
        "env",
    )
    return [*command.split(), "--runs", str(case), f"--{chance.choice(known)}", value]


def serve(folder: Path) -> None:
    for line in sys.stdin:
        kind, number = line.split()
        print(json.dumps(do(kind, int(number), folder)), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    home = place / "home"
    home.mkdir(exist_ok=True)
    os.environ.update(
        HOME=str(home), TMPDIR=str(home), XDG_STATE_HOME=str(home), XDG_CACHE_HOME=str(home), MPLCONFIGDIR=str(home)
    )
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.tempdir = str(home)
    sys.addaudithook(hook)
    if len(sys.argv) > 2:
        if not (place / "runs").exists():
            make_runs(place / "runs")
        done = do(sys.argv[2], int(sys.argv[3]), place)
        print(done.pop("wrong"))
        print(json.dumps(done, indent=1))
    else:
        serve(place)
    hearing.close()
