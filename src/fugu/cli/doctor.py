"""``fugu doctor``: show what this machine and installation can do, what is missing, and what to type."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from fugu import __version__
from fugu.cli.options import console, parse

TORCH_TESTED = ((2, 8), (2, 14))
"""the first version tested, and the first one beyond"""

# extra -> (modules it brings, what it is for)
EXTRAS = {
    "pettingzoo": (("pettingzoo",), "multi-agent environments"),
    "sb3": (("stable_baselines3",), "our vector envs under Stable-Baselines3"),
    "torchrl": (("torchrl",), "our vector envs under TorchRL"),
    "atari": (("ale_py",), "Atari"),
    "mujoco": (("mujoco", "imageio"), "MuJoCo"),
    "minigrid": (("minigrid",), "MiniGrid and BabyAI"),
    "plot": (("matplotlib",), "fugu plot"),
    "video": (("imageio_ffmpeg", "PIL"), "fugu video"),
    "tokens": (("tokenizers",), "Hugging Face tokenizers"),
    "memory": (("hnswlib", "usearch"), "approximate search in large memories"),
}

LEVELS = {
    3: "programs run in namespaces of their own",
    2: "no namespaces; programs see few files and no network",
    1: "no namespaces, no Landlock; programs can read files, but not write or connect",
    0: "limits only; programs would have the rights of their user, so coding environments refuse to start",
}
"""meaning of each level of the sandbox"""

NOT_MISSED = "none, which only a GPU needs"

Status = Literal["ok", "info", "warning", "broken"]
MARKS = {"ok": ("ok", "green"), "info": ("-", "dim"), "warning": ("!", "yellow"), "broken": ("broken", "red")}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show what this machine and installation can do. Exit code 1 if something that is needed is broken."""

    json: bool = False
    """Print a JSON object"""


@dataclass(frozen=True)
class Item:
    name: str
    status: Status
    found: str
    fix: str = ""


def main(argv: list[str]) -> int:
    options = parse(Options, "doctor", argv)
    items = list(examine())
    broken = [item for item in items if item.status == "broken"]
    if options.json:
        print(json.dumps({"ok": not broken, "items": [asdict(item) for item in items]}, indent=2))
        return int(bool(broken))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for item in items:
        mark, colour = MARKS[item.status]
        text = Text(item.found)
        if item.fix:
            text.append(f"\n{item.fix}", style="bold")
        table.add_row(Text(mark, style=colour), item.name, text)
    console().print(table)
    return int(bool(broken))


def examine() -> Iterator[Item]:
    """Yield everything there is to know, one item at a time; a part that raises is broken and the others go on."""
    parts: tuple[Callable[[], Iterator[Item]], ...] = (
        _python,
        _native,
        _torch,
        _cuda,
        _machine,
        _sharing,
        _process,
        _sandbox,
        _extras,
    )
    for part in parts:
        try:
            yield from part()
        except Exception as error:
            yield Item(part.__name__.strip("_"), "broken", f"{type(error).__name__}: {error}")


def _python() -> Iterator[Item]:
    yield Item("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Item("fugu", "ok", f"{__version__} ({Path(__file__).parent.parent})")
    for name in ("numpy", "gymnasium"):
        yield Item(name, "ok", importlib.import_module(name).__version__)


def _native() -> Iterator[Item]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reported below
        from fugu.native import missing, native
    if native is not None:
        yield Item("native core", "ok", f"loaded ({Path(native.__file__).name})")
        return
    why = missing or "not built"
    fix = "install a C++ compiler, then: pip install --force-reinstall --no-binary fugu-rl fugu-rl"
    yield Item("native core", "warning", f"pure-Python fallback, several times slower ({why})", fix)


def _torch() -> Iterator[Item]:
    if importlib.util.find_spec("torch") is None:
        yield Item("torch", "broken", "not installed", 'pip install "torch>=2.8,<2.14"')
        return
    import torch

    yield torch_item(str(torch.__version__), torch.version.cuda, nvidia_driver(), _gpus(torch))


def torch_item(version: str, cuda: str | None, driver: bool, gpus: list[str]) -> Item:
    """Describe a torch ``version`` built for ``cuda`` (None: CPU) on a machine with or without an NVIDIA ``driver``."""
    build = f"CUDA {cuda}" if cuda else "CPU build"
    found = f"{version}, {build}" + (f", {', '.join(gpus)}" if gpus else "")
    number = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    low, high = (".".join(map(str, bound)) for bound in TORCH_TESTED)
    if not TORCH_TESTED[0] <= number < TORCH_TESTED[1]:
        return Item(
            "torch", "warning", f"{found}; tested are {low} up to, not including, {high}", f'pip install "torch>={low},<{high}"'
        )
    if driver and not cuda:
        fix = f'pip install --force-reinstall "torch>={low},<{high}" with the CUDA index that https://pytorch.org/get-started names'
        return Item("torch", "warning", f"{found}, but this machine has an NVIDIA driver: the GPU is not used", fix)
    if cuda and driver and not gpus:
        return Item(
            "torch", "warning", f"{found}, a driver, but no GPU that torch can use", "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    return Item("torch", "ok", found + ("" if gpus else ", no GPU (fine)"))


def nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _gpus(torch: Any) -> list[str]:
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _cuda() -> Iterator[Item]:
    """Try what environments and kernels on a GPU rest on: the driver, the run-time compiler, and both together."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    from fugu.errors import FuguError
    from fugu.gpu.libraries import driver_version, nvrtc_path, nvrtc_version

    gpus = _gpus(torch)
    missing: Status = "warning" if gpus else "info"  # without a GPU they are not needed
    try:
        yield Item("CUDA driver", "ok", f"for CUDA {driver_version()}")
    except FuguError as error:
        fix = "install NVIDIA's driver, so that nvidia-smi works" if nvidia_driver() or gpus else ""
        yield Item("CUDA driver", missing, NOT_MISSED if not gpus else str(error), fix)
    try:
        yield Item("NVRTC", "ok", f"{nvrtc_version()} ({nvrtc_path()})")
    except FuguError as error:
        major = (torch.version.cuda or "").split(".")[0]
        package = "nvidia-cuda-nvrtc" + ("-cu12" if major == "12" else "")
        yield Item(
            "NVRTC", missing, NOT_MISSED if not gpus else str(error), f"pip install {package}, or set CUDA_HOME" if gpus else ""
        )
    for i, name in enumerate(gpus):
        yield gpu_item(f"cuda:{i}", name)


def gpu_item(device: str, name: str) -> Item:
    """Compile an environment for ``device`` and step it there."""
    import torch

    import fugu.vector

    start = time.perf_counter()
    try:
        vec = fugu.vector.make("cartpole", 64, backend="device", device=device)
        rows = vec.rows()
        vec.reset(0, rows)
        for _ in range(100):
            vec.step(torch.ones(64, dtype=torch.int64, device=vec.device), rows)
        episodes = vec.drain_log().episodes
        if episodes == 0:
            return Item(
                f"kernels on {device}",
                "broken",
                f"{name}: ran, but computed nothing",
                "please report this with nvidia-smi's output",
            )
    except Exception as error:
        fix = "see above for what is missing; without it train with --device cpu"
        return Item(f"kernels on {device}", "warning", f"{name}: {type(error).__name__}: {error}", fix)
    return Item(
        f"kernels on {device}", "ok", f"{name}: an environment compiled and stepped in {time.perf_counter() - start:.1f} s"
    )


def _machine() -> Iterator[Item]:
    import psutil

    from fugu.vector.config import usable_cores

    usable, all_of_them = usable_cores(), os.cpu_count() or 1
    limited = "" if usable == all_of_them else f" of {all_of_them} (affinity or container limit)"
    yield Item("cores", "ok", f"{usable} usable{limited}")
    memory = psutil.virtual_memory()
    yield Item("memory", "ok", f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f}")


def _sharing() -> Iterator[Item]:
    """Try each thing that the process backend rests on."""
    from fugu.vector.buffers import shared_memory
    from fugu.vector.launch import anonymous_file

    fd = anonymous_file("fugu-doctor")
    try:
        with shared_memory(fd, 1 << 16) as memory:
            memory[0] = 1
    finally:
        os.close(fd)
    how = "memfd" if hasattr(os, "memfd_create") else "a temporary file (no memfd on this system)"
    yield Item("shared memory", "ok", f"by {how}")
    if hasattr(os, "pidfd_open"):
        os.close(os.pidfd_open(os.getpid()))
        yield Item("pidfd", "ok", "workers end with their parent")
    else:
        yield Item("pidfd", "info", "not on this system; workers look for their parent from time to time")


def _process() -> Iterator[Item]:
    """Step two environments, one of them in a worker: covers starting, futex hand-over and ending."""
    import fugu.vector
    from fugu.native import native

    start = time.perf_counter()
    with fugu.vector.make("CartPole-v1", 2, backend="process", num_workers=2, start_timeout=30.0) as vec:
        vec.reset()
        for _ in range(10):
            vec.step([0, 1])
    how = "waits on a futex" if native is not None else "polls: the native core is missing"
    yield Item("process backend", "ok", f"a worker started, stepped and ended in {time.perf_counter() - start:.1f} s; {how}")


def _sandbox() -> Iterator[Item]:
    """Examine how well programs written by an agent can be isolated; only coding environments need it."""
    from fugu.coding.sandbox import probe
    from fugu.errors import SandboxError

    try:
        report = probe.examine()
    except SandboxError as error:
        yield Item("sandbox", "info", str(error))
        return
    found = f"level {report.level} of 3: {LEVELS[report.level]}"
    if not report.missing:
        yield Item("sandbox", "ok", f"{found}; fugu sandbox tries it")
        return
    fixes = dict.fromkeys(f"{name}: {remedy}" for name, remedy in report.remedies().items())
    status: Status = "ok" if report.level == 3 else "warning"
    yield Item("sandbox", status, f"{found}, without {', '.join(report.missing)}", "\n".join(fixes))


def _extras() -> Iterator[Item]:
    for extra, (modules, purpose) in EXTRAS.items():
        if all(importlib.util.find_spec(module) is not None for module in modules):
            yield Item(extra, "ok", purpose)
        else:
            yield Item(extra, "info", f"{purpose}: not installed", f'pip install "fugu-rl[{extra}]"')
