"""Lines that show a group of runs once its training has ended."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from fugu.cli.options import console
from fugu.errors import shown_line
from fugu.run.measure import MEASURES, shared

if TYPE_CHECKING:
    from fugu.run.group import Group


def show_group(group: Group, program: str) -> int:
    """Print a line per seed, the mean over them, and what can be done next."""
    from fugu.run.overview import overview
    from fugu.run.spread import error, mean

    out = console()
    there = {run.config.seed: overview(run.folder) for run in group}
    out.print()
    for seed in group.seeds:
        one = there.get(seed)
        text = "not begun" if one is None else f"{one.path}, {one.state}"
        if one is not None and one.score is not None:
            text += f", {MEASURES[one.measure or 'score'][0]} {one.score:.1f}"
        out.print(Text(f"seed {seed}: {shown_line(text)}"), soft_wrap=True)
    ended = [one.latest for one in there.values() if one.state == "done" and one.latest]
    if all(one.state != "done" for one in there.values()):  # the error says what to do
        return 0
    path = shlex.quote(str(group.path))
    head = f"group {path}"
    if (kind := shared(ended)) is not None:
        done = [latest[kind] for latest in ended]
        spread = f" +- {error(done):.1f} (standard error of {len(done)} seeds)" if len(done) > 1 else ""
        head += f": mean {MEASURES[kind][0]} {mean(done):.1f}{spread}"
    out.print(Text(f"{head}. Next:"), soft_wrap=True)
    commands = (
        (f"{program} plot {path}", "the mean of its curves"),
        (f"{program} eval {shlex.quote(str(group.folders[0].path))}", "how good is one of them, over 100 episodes"),
        (f"{program} train --resume {path} --steps {2 * max(run.config.steps for run in group)}", "train all of them on"),
    )
    width = max(len(command) for command, _ in commands)
    for command, what in commands:
        out.print(Text(f"  {command:{width}}  # {what}"), soft_wrap=True)
    return 0
