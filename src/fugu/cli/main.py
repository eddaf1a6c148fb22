"""The entry point of the ``fugu`` command: finds the command, and turns every way it can end into an exit code.

Nothing heavy is imported here, so that ``fugu --help`` answers at once; a command's module is imported when it is called.
Exit codes: 0 fine, 1 it failed, 2 it was called wrongly, 130 Ctrl-C, 129 SIGHUP and 143 SIGTERM (the terminal went away, or somebody
asked a training to end: it saved), 141 the reader of the output went away.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from fugu import __version__
from fugu.errors import ConfigError, FuguError, did_you_mean, shown, whole

MOST = 4000
"""characters of a message; a traceback in an environment's words may be long, and so may a name"""

# command -> (module with main(argv) -> exit code, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("fugu.cli.train", "train a policy; --resume goes on with a run"),
    "eval": ("fugu.cli.eval", "play many episodes with a run's policy; the mean return and how sure it is"),
    "video": ("fugu.cli.video", "write an episode of a run's policy as mp4 or gif, without a display"),
    "play": ("fugu.cli.play", "watch a run's policy in the terminal, or drive an environment yourself"),
    "record": ("fugu.cli.record", "write down what a run's policy, its checkpoints or chance do, to learn from later"),
    "data": ("fugu.cli.data", "describe, check, filter, join and convert recorded episodes"),
    "runs": ("fugu.cli.runs", "list the runs, and how far they got"),
    "plot": ("fugu.cli.plot", "draw the curves of one or several runs as a picture"),
    "judge": ("fugu.cli.judge", "score a file of programs written for tasks: pass@k"),
    "ratings": ("fugu.cli.ratings", "show how strong the versions of a policy are that played each other"),
    "list": ("fugu.cli.list", "list the environments that can be made by name here"),
    "check": ("fugu.cli.check", "find everything that is wrong with an environment, with fixes"),
    "autotune": ("fugu.cli.autotune", "measure which vector settings are fastest for an environment"),
    "bench vector": ("fugu.cli.bench", "measure the steps per second of our backends and of other libraries"),
    "doctor": ("fugu.cli.doctor", "show what this machine and installation can do"),
    "cluster check": ("fugu.cli.cluster", "look at the machines of a Ray cluster: versions, cores, memory, speed"),
    "sandbox": ("fugu.cli.sandbox", "test how well programs are isolated here, and how fast they run"),
    "build": ("fugu.cli.build", "compile a native environment of your own, with sanitizers if asked to"),
    "new env": ("fugu.cli.new", "write a small environment to start from"),
    "new tasks": ("fugu.cli.new_tasks", "write built-in coding tasks to a file, for fugu judge"),
    "new algorithm": ("fugu.cli.new_algorithm", "write a small algorithm to start from, for fugu train --algorithm"),
    "new policy": ("fugu.cli.new_policy", "write a small network to start from, for fugu train --policy"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (default: the process's own arguments) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments and arguments[:1] != ["build"]  # whose own --debug is another
    if debug:
        arguments = [argument for argument in arguments if argument != "--debug"]
    else:
        warnings.formatwarning = _one_line
    # Threads of torch that have nothing to do sleep instead of spinning, which takes the cores from environments in other processes and
    # from whatever else the machine does. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if sys.stdout is None:  # closed by the caller: fugu ... >&-
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal has no letters for is no reason to end
    try:
        code = _code(arguments, debug)
        sys.stdout.flush()  # a reader that has gone, or a full disk, shows here at the latest
        return code
    except BrokenPipeError:
        _forget_output()
        return 141
    except OSError as error:
        if error.filename is None and _output_fails():
            _forget_output()
            _complain(f"the output cannot be written: {error.strerror}")
        else:
            if debug:
                traceback.print_exc()
            place = "" if error.filename is None else f"{error.filename}: "
            _complain(place + (error.strerror or str(error) or type(error).__name__))
        return 1


def _code(arguments: list[str], debug: bool) -> int:
    try:
        return _run(arguments)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except FuguError as error:
        if debug:
            print(shown(whole(error)), file=sys.stderr)
        _complain(str(error))
        return 2 if isinstance(error, ConfigError) else getattr(error, "exit_code", 1)
    except (ImportError, OSError) as error:
        if not _without_torch(error):
            raise
        if debug:
            traceback.print_exc()
        from fugu.cli.doctor import torch_cannot_be_loaded

        _complain(torch_cannot_be_loaded(error))
        return 1


def _without_torch(error: BaseException) -> bool:
    """Return whether torch is not installed or broken, and that is what the error is about."""
    if sys.modules.get("torch") is not None:
        return False
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return getattr(error, "name", None) == "torch" or any(Path(file).parts[-2:] == ("torch", "__init__.py") for file in files)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        print(f"fugu {__version__}")
        return 0
    for words in (1, 2):
        name = " ".join(arguments[:words])
        if name in COMMANDS:
            try:
                Path.cwd()
            except OSError as error:
                raise FuguError(f"the current folder: {error.strerror}") from None
            return importlib.import_module(COMMANDS[name][0]).main(arguments[words:])
    return _unknown(arguments)


def _unknown(arguments: list[str]) -> int:
    first = arguments[0]
    under = [name.split()[1] for name in COMMANDS if name.startswith(first + " ")]
    if under and (len(arguments) == 1 or arguments[1] in ("-h", "--help")):
        print(_help(first + " "), file=sys.stderr if len(arguments) == 1 else sys.stdout)
        return 2 if len(arguments) == 1 else 0
    if under:
        _complain(f"fugu {first} has no command {arguments[1]!r}.{did_you_mean(arguments[1], under)}")
    else:
        _complain(
            f"fugu has no command {first!r}.{did_you_mean(first, {name.split()[0] for name in COMMANDS})} See fugu --help"
        )
    return 2


def _help(prefix: str = "") -> str:
    shown = {name: text for name, (_, text) in COMMANDS.items() if name.startswith(prefix)}
    width = max(map(len, shown))
    return "\n".join(
        [
            f"fugu {__version__}: reinforcement learning at the speed of C and CUDA, without leaving Python",
            "",
            f"usage: fugu {prefix}COMMAND [options]",
            "",
            *(f"  {name:{width}}  {text}" for name, text in shown.items()),
            "",
            "fugu COMMAND --help  explains one command; --debug shows tracebacks, --version the version",
        ]
    )


def _output_fails() -> bool:
    """Return whether an OSError came from standard output: then not even an empty line can be written to it."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _forget_output() -> None:
    """Point standard output to nowhere; otherwise the interpreter complains about it again when it flushes on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(message: Warning | str, *place: object, **more: object) -> str:
    """Return a warning as people want to read it, without the file and line it came from."""
    return shown(f"warning: {message}", most=MOST) + "\n"


def _complain(message: str) -> None:
    """Print one message in red on standard error."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(shown(message, most=MOST), style="red"), soft_wrap=True)
