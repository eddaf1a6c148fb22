"""``fugu record RUN|ENV``: write down what a policy, a mixture of them, or chance does, to learn from later."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from fugu.cli.options import PolicyOptions, console, parse, take_env_kwargs
from fugu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options(PolicyOptions):
    """Play whole episodes and record them: observations, actions, rewards and endings, with the seed and the player of each episode.

    The same command writes the same bytes. What is complete stays, whatever interrupts it. --env.NAME VALUE changes a setting of the
    environment.
    """

    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|ENV")] = "latest"
    """Run (latest, latest~1, a name or a path), or with --random an environment (fugu list)"""
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = ""
    """Folder to write, or a file .hdf5 in Minari's layout"""
    episodes: int | None = None
    """Episodes to play; none: 100, or as many as make --steps"""
    steps: int | None = None
    """Steps to record at least; every episode under way is then played to its end"""
    noise: tuple[float, ...] = ()
    """Chance of a random choice, or deviation of a number in halves of its range; of several values each episode gets the next"""
    random: bool = False
    """Draw random actions in the place of a policy's"""
    checkpoints: tuple[str, ...] = ()
    """Checkpoints that play the same share each: all, or latest, best and steps; none: that of --checkpoint"""
    num_envs: int | None = None
    """Environments that play at once; none: one per episode, up to 64, or 512 with random play in C++"""
    num_workers: int | None = None
    """Processes or threads that step the environments; none: one per usable core"""
    backend: str = "auto"
    """Backend of the environments: auto, serial, process or native"""
    append: bool = False
    """Add to the folder in --out, which must be of the same spaces"""
    device: str = "cpu"
    """Device that computes the policy: cpu, or cuda, which pays off for a large network"""


def main(argv: list[str]) -> int:
    argv, env_kwargs = take_env_kwargs(argv)
    options = parse(Options, "record", argv)
    if not options.out:
        raise ConfigError("--out is missing: the folder to write, for example --out data/mine")
    checkpoints: list[str | int] = [*options.checkpoints] or [options.which]
    from fugu.data.opening import SUFFIXES
    from fugu.run.record import record

    final = Path(options.out) if Path(options.out).suffix in SUFFIXES else None
    if final is not None and (options.append or final.exists()):
        raise ConfigError(f"{final}: {'--append is for folders' if options.append else 'exists already'}; give another --out")
    folder = final.with_suffix(".parts") if final is not None else Path(options.out)
    data = record(
        options.what,
        folder,
        episodes=options.episodes,
        steps=options.steps,
        random=options.random,
        noise=options.noise,
        checkpoints=checkpoints,
        greedy=options.greedy,
        seed=options.seed,
        num_envs=options.num_envs,
        append=options.append,
        env_kwargs=env_kwargs,
        runs=options.runs,
        device=options.device,
        vectors={"backend": options.backend, "num_workers": options.num_workers},
        **{name: value for name, value in options.code.items() if value},
    )
    if final is not None:
        from fugu.data import hdf5_write

        hdf5_write.write(data, final)
        shutil.rmtree(folder)
    out = console()
    mean = f", mean return {data.returns.mean():.2f}" if data.episodes else ""
    out.print(Text(f"{options.out}: {data.episodes:,} episodes, {data.steps:,} steps{mean}"), soft_wrap=True)
    return 0
