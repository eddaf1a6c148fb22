"""Training speed on a CPU, beside Stable-Baselines3's PPO and a plain loop (``cleanrl_style.py``): end to end, environments included.

    python benchmarks/train.py --out benchmarks/results/train.json        # five to six minutes on two idle cores

``throughput``    CartPole, steps per second: every trainer with the batch that suits it, an actor and a critic of 64-64 tanh each
``solve``         seconds from the start of the process to a mean return of 475 over 100 episodes and its end
``puffer_shapes`` steps per second with the networks and batches of PufferLib 3.0; its own figures are quoted, not measured here
``limit``         share of the arithmetic limit: operations per step, times steps per second, over the sgemm rate of torch
``board``         what the dashboard costs
``screens``       an Atari game, which is seen by convolutions: steps per second in float32 and in bfloat16
``start``         seconds from the start of the process to the first board, the first line, and the end of ``fugu --help``

Contestants have a process each (``trainers.py``) and take turns. SB3 and the plain loop have one thread of torch: with two, the
fastest of them gained nothing and SB3's ten epochs a sixth while nothing else ran, and all lost most of their speed otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from fugu.trainer.precision import cpu_multiplies_bf16
from harness import Result, alternate, main, ratios, summaries
from trainers import GAME, Contestant

FUGU = [sys.executable, "-m", "fugu"]
TRAINERS = [sys.executable, str(Path(__file__).with_name("trainers.py"))]

# --- steps per second ---

NATIVE, SHARED, NATIVE_64, PYTHON = (
    "fugu, native cartpole",
    "fugu, native cartpole, actor and critic share the layers",
    "fugu, native cartpole, the batch of SB3",
    "fugu, CartPole-v1",
)
SB3_DUMMY, SB3_PROCESSES, SB3_TEN, SB3_DEFAULT = (
    "SB3, 64 envs in one process",
    "SB3, 64 envs in processes",
    "SB3, 64 envs in one process, 10 epochs",
    "SB3, its defaults: 1 env, minibatch 64, 10 epochs",
)
PLAIN = "plain loop, 64 envs"

WIDE: dict[str, Any] = {"num_envs": 2048, "horizon": 64, "minibatch": 32768, "epochs": 1}
"""large enough that calls cost next to nothing beside the work"""
SMALL: dict[str, Any] = {"num_envs": 64, "horizon": 128, "minibatch": 4096, "epochs": 1}
SB3_64: dict[str, Any] = {"num_envs": 64, "n_steps": 128, "batch_size": 4096}


def throughput(seconds: float, repeats: int) -> dict[str, Any]:
    """One epoch where not said otherwise: the least work that any of them can do with a batch."""
    results = take_turns(
        {
            NATIVE: partial(Contestant, "fugu", env="cartpole", share=False, **WIDE),
            SHARED: partial(Contestant, "fugu", env="cartpole", share=True, **WIDE),
            NATIVE_64: partial(Contestant, "fugu", env="cartpole", share=False, **SMALL),
            PYTHON: partial(Contestant, "fugu", env="CartPole-v1", share=False, **SMALL),
            SB3_DUMMY: partial(Contestant, "sb3", n_epochs=1, **SB3_64),
            SB3_PROCESSES: partial(Contestant, "sb3", vec="processes", n_epochs=1, **SB3_64),
            SB3_TEN: partial(Contestant, "sb3", n_epochs=10, **SB3_64),
            SB3_DEFAULT: partial(Contestant, "sb3"),
            PLAIN: partial(Contestant, "plain"),
        },
        seconds,
        repeats,
    )
    best = max((SB3_DUMMY, SB3_PROCESSES, SB3_TEN), key=lambda name: max(results[name].values))
    pairs = [(NATIVE, best), (SHARED, best), (NATIVE, SB3_TEN), (NATIVE, SB3_DEFAULT), (NATIVE, PLAIN)]
    return {
        "steps_per_second": summaries(results),
        "best of SB3": best,
        "ratio": ratios(results, [*pairs, (PYTHON, best), (NATIVE_64, PYTHON)]),
        "target": {f"{NATIVE} / {best}": 20},
    }


def take_turns(starts: Mapping[str, Callable[[], Contestant]], seconds: float, repeats: int) -> dict[str, Result]:
    """What the contestants do per second."""
    with ExitStack() as stack:
        running = {name: stack.enter_context(start()) for name, start in starts.items()}
        return alternate({name: partial(contestant.rate, seconds) for name, contestant in running.items()}, repeats)


# --- an Atari game ---

SCREENS, SCREENS_HALF = "fugu, float32", "fugu, bfloat16"
SB3_SCREENS, SB3_SCREENS_PROCESSES = "SB3, 8 envs in one process", "SB3, 8 envs in processes"


def screens(seconds: float, repeats: int) -> dict[str, Any]:
    """Every row is learned from four times, in minibatches of 256, by the same network: fugu's preset, and the Zoo's settings."""
    starts = {
        SCREENS: partial(Contestant, "fugu", env=GAME, precision="float32"),
        SCREENS_HALF: partial(Contestant, "fugu", env=GAME, precision="bf16"),
        SB3_SCREENS: partial(Contestant, "sb3_screens", vec="dummy", num_envs=8),
        SB3_SCREENS_PROCESSES: partial(Contestant, "sb3_screens", vec="processes", num_envs=8),
    }
    if not cpu_multiplies_bf16():
        print("bfloat16 is not measured: this CPU has no instructions for it", file=sys.stderr)
        del starts[SCREENS_HALF]
    results = take_turns(starts, seconds, repeats)
    best = max((SB3_SCREENS, SB3_SCREENS_PROCESSES), key=lambda name: max(results[name].values))
    pairs = [(name, best) for name in (SCREENS, SCREENS_HALF) if name in results]
    return {"game": GAME, "steps_per_second": summaries(results), "best of SB3": best, "ratio": ratios(results, pairs)}


# --- seconds to a solved task ---

SOLVE, SOLVE_PYTHON, SOLVE_SB3 = "fugu train cartpole", "fugu train CartPole-v1", "SB3, settings of RL Baselines3 Zoo"


def solve(repeats: int, **_: Any) -> dict[str, Any]:
    """Every repeat is another seed. A run that ends unsolved counts with the time it took."""
    unsolved: dict[str, list[int]] = {SOLVE: [], SOLVE_PYTHON: [], SOLVE_SB3: []}
    turn = dict.fromkeys(unsolved, 0)

    def once(name: str, run: Callable[[int], tuple[float, bool]]) -> float:
        seed = turn[name]
        turn[name] += 1
        seconds, solved = run(seed)
        if not solved:
            unsolved[name].append(seed)
        return seconds

    runs = {SOLVE: partial(fugu_solves, "cartpole"), SOLVE_PYTHON: partial(fugu_solves, "CartPole-v1"), SOLVE_SB3: sb3_solves}
    results = alternate({name: partial(once, name, run) for name, run in runs.items()}, repeats)
    return {
        "seconds": summaries(results),
        "unsolved_seeds": unsolved,
        "ratio": ratios(results, [(SOLVE, SOLVE_SB3), (SOLVE_PYTHON, SOLVE_SB3)]),
        "target": {f"{SOLVE} / {SOLVE_SB3}": 1 / 3, SOLVE: 5},
    }


def fugu_solves(env: str, seed: int) -> tuple[float, bool]:
    with tempfile.TemporaryDirectory() as runs:
        began = time.perf_counter()
        command = [*FUGU, "train", env, "--target", "475", "--seed", str(seed), "--runs", runs]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        import fugu

        run = fugu.Run("latest", runs)
        return seconds, run.metrics()[-1]["steps"] < run.config.steps


def sb3_solves(seed: int) -> tuple[float, bool]:
    began = time.perf_counter()
    done = subprocess.run([*TRAINERS, "sb3_solve", str(seed)], check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - began
    return seconds, json.loads(done.stdout.splitlines()[-1])["steps"] < 100_000


# --- beside PufferLib ---

PUFFER: dict[str, dict[str, Any]] = {
    "MLP-128": {"num_envs": 8192, "hidden": (128,), "activation": "relu", "core": "none"},
    "LSTM-128": {"num_envs": 2048, "hidden": (128,), "activation": "relu", "core": "lstm", "core_size": 128},
}
PUFFER_BATCH: dict[str, Any] = {"horizon": 64, "minibatch": 32768, "epochs": 1}
QUOTED = {
    "cartpole MLP-128": 300_000,
    "cartpole LSTM-128": 50_000,
    "breakout MLP-128": 170_000,
    "breakout LSTM-128": 44_000,
}
"""steps per second that PufferLib 3.0 reached on two such cores"""


def puffer_shapes(seconds: float, repeats: int) -> dict[str, Any]:
    """PufferLib's layers and batches; its hidden layer has GELU where this one has ReLU."""
    starts = {
        f"{env} {network}": partial(Contestant, "fugu", env=env, **PUFFER[network], **PUFFER_BATCH)
        for env in ("cartpole", "breakout")
        for network in PUFFER
    }
    results = take_turns(starts, seconds, repeats)
    return {
        "steps_per_second": summaries(results),
        "PufferLib 3.0, quoted, not measured here": QUOTED,
        "ratio": {name: result.median / QUOTED[name] for name, result in results.items()},
        "target": {name: 2 if "MLP" in name else 1.3 for name in results},
    }


# --- beside the arithmetic limit ---

SQUARE = (1024, 1024, 1024)
MLP, LSTM = "cartpole, MLP 64-64", "breakout, LSTM-128"
SHAPES = {MLP: (32768, 64, 64), LSTM: (32768, 128, 512)}
"""rows, inner, columns of the largest product of each network"""


def limit(seconds: float, repeats: int) -> dict[str, Any]:
    """Operations are those of the matrix products that learning from a step once needs, a multiplication and an addition being two:
    a forward pass to act, one to learn, and backwards the products for the weights of every layer and for the inputs of every layer
    but the first. The rest (environment, activations, loss, Adam, copies) counts as none. The limit is the fastest product of any
    shape and repeat."""
    operations = {
        MLP: step_operations([(4, 64), (64, 64), (64, 3)]),
        LSTM: step_operations([(118, 128), (256, 4 * 128), (128, 4)]),
    }
    shapes = {"sgemm " + " x ".join(map(str, shape)): shape for shape in (SQUARE, *SHAPES.values())}
    starts: dict[str, Callable[[], Contestant]] = {
        MLP: partial(Contestant, "fugu", env="cartpole", share=True, **WIDE),
        LSTM: partial(Contestant, "fugu", env="breakout", **PUFFER["LSTM-128"], **PUFFER_BATCH),
        **{name: partial(Contestant, "sgemm", rows=m, inner=k, columns=n) for name, (m, k, n) in shapes.items()},
    }
    results = take_turns(starts, seconds, repeats)
    fastest = max(value for name in shapes for value in results[name].values)  # of any shape in any repeat: a limit
    shares = {name: Result([operations[name] * value / fastest for value in results[name].values]) for name in operations}
    return {
        "operations_per_step": operations,
        "steps_per_second": summaries({name: results[name] for name in operations}),
        "gflops": summaries({name: Result([value / 1e9 for value in results[name].values]) for name in shapes}),
        "share_of_limit": summaries(shares),
        "target": {MLP: 0.2, LSTM: 0.4},
    }


def step_operations(products: list[tuple[int, int]]) -> int:
    forward = 2 * sum(inputs * outputs for inputs, outputs in products)
    first = 2 * products[0][0] * products[0][1]
    return 4 * forward - first


# --- the board, and the start ---


def board(seconds: float, repeats: int) -> dict[str, Any]:
    """A run on a terminal with the board and without. The share is the time spent in it; the ratio is noisier than what it costs."""
    shares: list[float] = []

    def trained(kind: str) -> float:
        with terminal() as (end, output):
            process = subprocess.Popen([*TRAINERS, "board", kind, str(seconds)], stdout=end, stderr=subprocess.PIPE, text=True)
            os.close(end)
            drain = threading.Thread(target=lambda: [None for _ in output], daemon=True)
            drain.start()
            _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(errors)
        spent = json.loads(errors.splitlines()[-1])
        if kind == "board":
            shares.append(spent["board"] / spent["run"])
        return spent["steps"] / spent["run"]

    results = alternate({kind: partial(trained, kind) for kind in ("board", "off")}, repeats)
    return {
        "share_of_time": Result(shares).summary(),
        "steps_per_second": summaries(results),
        "ratio": ratios(results, [("board", "off")]),
        "target": {"share_of_time": 0.01},
    }


def start(repeats: int, **_: Any) -> dict[str, Any]:
    results = alternate({"first board": first_board, "first line": first_line, "fugu --help": show_help}, repeats)
    return {"seconds": summaries(results), "target": {"first board": 5, "first line": 5, "fugu --help": 0.5}}


def first_board() -> float:
    with terminal() as (end, output), tempfile.TemporaryDirectory() as runs:
        began = time.perf_counter()
        process = subprocess.Popen([*FUGU, "train", "cartpole", "--steps", "1e12", "--runs", runs], stdout=end)
        os.close(end)
        return until(process, output, began)


def first_line() -> float:
    with tempfile.TemporaryDirectory() as runs:
        began = time.perf_counter()
        process = subprocess.Popen([*FUGU, "train", "cartpole", "--steps", "1e12", "--runs", runs], stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as output:
            return until(process, iter(output.readline, b""), began)


def until(process: subprocess.Popen[Any], output: Iterator[bytes], began: float) -> float:
    """When ``output`` first says how many steps there are; the process is ended then."""
    try:
        seen = b""
        for part in output:
            seen += part
            if b"steps" in seen:
                return time.perf_counter() - began
        raise RuntimeError(f"{process.args} showed nothing")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def show_help() -> float:
    began = time.perf_counter()
    subprocess.run([*FUGU, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, Iterator[bytes]]]:
    """The end of a terminal for a process to write to, and what it wrote, until it has closed its end."""
    ours, theirs = pty.openpty()
    os.environ.setdefault("TERM", "xterm-256color")

    def output() -> Iterator[bytes]:
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                yield part

    try:
        yield theirs, output()
    finally:
        os.close(ours)


if __name__ == "__main__":
    cases = {
        "throughput": throughput,
        "solve": solve,
        "puffer_shapes": puffer_shapes,
        "limit": limit,
        "board": board,
        "screens": screens,
        "start": start,
    }
    main("train", __doc__, cases, repeats=3, seconds=2.5)
