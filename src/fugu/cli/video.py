"""``fugu video RUN``: write an episode of a run's policy as a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from fugu.cli.options import PolicyOptions, console, parse, take_env_kwargs


@dataclass(frozen=True, kw_only=True)
class Options(PolicyOptions):
    """Write an episode of a run's policy as mp4 or gif; no display is needed. --env.NAME VALUE changes a setting of the environment."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = "latest"
    """Run: latest, latest~1, a name or a path"""
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = ""
    """File to write, .mp4 or .gif; empty: an mp4 in videos/ of the run's folder"""
    max_frames: int = 3000
    """Pictures after which the video ends if the episode has not"""
    fps: float | None = None
    """Pictures per second; none: the environment's own rate, or 30"""
    scale: int | None = None
    """Whole factor to enlarge the pictures by; none: the smallest that makes them 256 wide"""
    imagine: bool = False
    """Show beside it what the world model of a dreamer expected to see, after one look every 30 steps"""


def main(argv: list[str]) -> int:
    argv, env_kwargs = take_env_kwargs(argv)
    options = parse(Options, "video", argv)
    which = options.which  # or its error, before torch is imported
    from fugu.run.run import Run

    path = Run(options.run, options.runs, **options.code).video(
        options.out or None,
        which=which,
        seed=options.seed,
        greedy=options.greedy,
        max_frames=options.max_frames,
        fps=options.fps,
        scale=options.scale,
        env_kwargs=env_kwargs,
        imagine=options.imagine,
    )
    console().print(str(path), soft_wrap=True, markup=False, highlight=False)
    return 0
