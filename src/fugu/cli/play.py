"""``fugu play RUN`` shows a policy in the terminal; ``fugu play ENV`` lets you drive an environment by keys.

If the output is no terminal, it prints a plain line per step.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from fugu.cli.options import PolicyOptions, parse, take_env_kwargs
from fugu.errors import ConfigError, FuguError, shown, shown_line

if TYPE_CHECKING:
    import numpy as np

    from fugu.cli.screen import Screen
    from fugu.data.tape import Tape
    from fugu.run.scene import Scene
    from fugu.vector.vecenv import VecEnv

PLAIN_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class Options(PolicyOptions):
    """Watch a run's policy in the terminal, or drive an environment by keys: numbers or arrows, space pauses, q quits.

    If the output is no terminal, a line is printed per step, and an environment gets random actions. --env.NAME VALUE goes to the
    environment.
    """

    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV|RUN")] = "latest"
    """Run (latest, latest~1, a name or a path), or environment (fugu list)"""
    fps: float | None = None
    """Steps per second; none: the environment's own rate, or 30"""
    mode: Literal["auto", "live", "turns"] = "auto"
    """Pace of an environment driven by keys: live (goes on at --fps) or turns (a step per key); auto: live for known games of skill"""
    record: str = ""
    """Folder to record the episodes of an environment in that you drive; one that is there already is added to"""
    max_steps: int | None = None
    """Steps after which it ends; none: never, or 1000 if the output is no terminal"""


def main(argv: list[str]) -> int:
    argv, env_kwargs = take_env_kwargs(argv)
    options = parse(Options, "play", argv)
    if options.max_steps is not None and options.max_steps < 1:
        raise ConfigError(f"--max-steps {options.max_steps} must be at least 1")
    if options.fps is not None and not 0.1 <= options.fps <= 1000:
        raise ConfigError(f"--fps {options.fps:g} must be from 0.1 to 1000")
    screen = _screen()
    with ExitStack() as stack:
        if _is_run(options.what, options.runs):
            if options.record:
                raise ConfigError(
                    f"--record is for environments that you drive; try fugu record {options.what} --out {options.record}"
                )
            show = _policy(options, env_kwargs, screen, stack)
        elif any(options.code.values()):
            raise ConfigError(f"{options.what} is no run, and --env, --policy, --algorithm and --trust-code are for runs")
        else:
            show = _drive(options, env_kwargs, screen, stack)
        if screen is None:
            for line in itertools.islice(map(_line, show), (options.max_steps or PLAIN_STEPS) + 1):
                print(shown(line))
        else:
            for _ in itertools.islice(show, None if options.max_steps is None else options.max_steps + 1):
                pass
    return 0


def _screen() -> Screen | None:
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    from fugu.cli.screen import Screen

    return Screen()


def _is_run(text: str, root: str) -> bool:
    return text.partition("~")[0] == "latest" or any((path / text / "config.toml").is_file() for path in (Path(), Path(root)))


def _policy(options: Options, env_kwargs: Mapping[str, Any], screen: Screen | None, stack: ExitStack) -> Iterator[Scene]:
    """Let the policy play, and show it on the screen, if any."""
    which = options.which  # or its error, before torch is imported
    from fugu.run.player import Player
    from fugu.run.run import Run
    from fugu.run.scene import frame_rate

    run = Run(options.what, options.runs, **options.code)
    player = stack.enter_context(Player(run, which, seed=options.seed, render=screen is not None, env_kwargs=env_kwargs))
    scenes = player.play(greedy=options.greedy)
    if screen is None:
        yield from scenes
        return
    stack.enter_context(screen)
    title = f"{shown_line(run.folder.name)}, step {player.step:,}"
    seconds = 1 / (options.fps or frame_rate(player.vec))
    for scene in scenes:
        _show(screen, scene, title, "space pauses, q quits")
        if _pause_or_quit(screen, screen.keys(seconds if not scene.moment.over else max(seconds, 0.5))):
            return
        yield scene


def _drive(options: Options, env_kwargs: Mapping[str, Any], screen: Screen | None, stack: ExitStack) -> Iterator[Scene]:
    """Let keys decide for the first agent whose turn it is, chance for the others; chance for all if there is no keyboard."""
    from fugu import vector
    from fugu.cli.keys import LIVE, keys_for
    from fugu.run.scene import Scene, drawn, frame_rate

    def make(kwargs: dict[str, Any]) -> vector.VecEnv:
        return vector.make(options.what, 1, env_kwargs=kwargs)

    vec = stack.enter_context(make(dict(env_kwargs)) if screen is None else drawn(options.what, env_kwargs, make))
    vec.action_space.seed(options.seed)
    keys = keys_for(vec.spec.name, vec.action_space) if screen is not None and screen.keyboard else None
    tape = _tape(vec, options, "random" if keys is None else "human", stack) if options.record else None
    scene = Scene(vec, options.seed, tape)
    if screen is None:
        while True:
            yield scene
            scene.step(_random(vec))
    stack.enter_context(screen)
    seconds = 1 / (options.fps or frame_rate(vec))
    turns = keys is not None and (options.mode == "turns" or (options.mode == "auto" and vec.spec.name not in LIVE))
    hint = ("random actions" if keys is None else keys.help) + ("; " if turns else "; space pauses, ") + "q quits"
    held: np.ndarray | None = None
    while True:
        _show(screen, scene, vec.spec.name, hint)
        if turns:
            pressed = [screen.wait()]
        else:
            pressed = screen.keys(seconds if not scene.moment.over else max(seconds, 0.5))
        if _pause_or_quit(screen, pressed):
            return
        action = _random(vec)
        if keys is not None:
            chosen = [keys.actions[key] for key in pressed if key in keys.actions]
            if turns and not chosen and not scene.moment.over:
                continue
            held = chosen[-1] if chosen else keys.idle if keys.idle is not None else held
            if held is not None:
                action[_acting(vec)] = held
        yield scene
        scene.step(action)


def _tape(vec: VecEnv, options: Options, policy: str, stack: ExitStack) -> Tape:
    """Return what records the episodes, all of one player."""
    import numpy as np

    from fugu.data.tape import Tape
    from fugu.data.writer import Writer
    from fugu.vector.seeds import env_seeds

    masks = vec.num_choices > 0 and vec.masks_actions
    recorded = {"env": options.what, "seed": options.seed}
    writer = stack.enter_context(Writer(options.record, vec.spec, recorded=recorded, action_mask=masks, append=True))
    return Tape(writer, env_seeds(options.seed, 1), np.array([writer.source({"policy": policy})]))


def _acting(vec: Any) -> int:
    """Return the agent that keys drive: the first one whose turn it is."""
    mask = vec.rows.mask
    return int(mask.argmax()) if mask.any() else 0


def _random(vec: Any) -> np.ndarray:
    """Return random actions for all agents, allowed ones where the environment says which are."""
    import numpy as np
    from gymnasium import spaces as gs

    from fugu.spaces import Packer

    rows = vec.action_layout.zeros(vec.num_agents)
    masks = vec.rows.action_mask
    packer = Packer(vec.action_layout)
    for agent in range(vec.num_agents):
        allowed = None
        if masks is not None and isinstance(vec.action_space, gs.Discrete):
            allowed = np.ascontiguousarray(masks[agent], np.int8)
        packer.pack(vec.action_space.sample(allowed) if allowed is not None else vec.action_space.sample(), rows[agent, ...])
    return rows


def _pause_or_quit(screen: Screen, pressed: list[str]) -> bool:
    """Return True if q was pressed; after a space wait for the next key."""
    if " " in pressed and "q" not in pressed:
        pressed = [screen.wait()]
    return "q" in pressed


def _picture(scene: Scene) -> np.ndarray | None:
    """Return the picture; None for an environment that cannot be drawn: its observation is shown instead."""
    try:
        return scene.picture()
    except FuguError:
        return None


def _show(screen: Screen, scene: Scene, title: str, hint: str) -> None:
    moment, text = scene.moment, scene.text()
    picture = None if text is not None else _picture(scene)
    end = "   episode over" if moment.over else ""
    lines = [
        f"episode {moment.episode}   step {moment.step}   reward {moment.reward:g}   return {moment.total:g}{end}",
        f"{hint}   ({title})",
    ]
    if picture is None:
        lines = [*(_observation(scene) if text is None else text).splitlines(), "", *lines]
    screen.show(picture, lines)


def _observation(scene: Scene) -> str:
    vec = scene.vec
    return " ".join(str(vec.views(vec.rows.obs[:1])).split())


def _line(scene: Scene) -> str:
    moment = scene.moment
    action = (
        "-" if moment.action is None else str(moment.action.tolist() if len(moment.action) > 1 else moment.action[0].tolist())
    )
    end = " over" if moment.over else ""
    if (text := scene.text()) is not None:
        shown = "".join(f"  {line}\n" for line in text.splitlines())
        return f"episode {moment.episode} step {moment.step} reward {moment.reward:g} return {moment.total:g}{end}\n{shown}"
    return f"episode {moment.episode} step {moment.step} action {action} reward {moment.reward:g} return {moment.total:g}{end}"
