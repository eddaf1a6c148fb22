"""``fugu ratings RUN``: show how strong the versions of a policy are that played against each other."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.table import Table

from fugu.cli.options import console, parse
from fugu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show the rating table of a run with --algorithm self_play: the policy as it is, and every version that was kept."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = "latest"
    """Run: latest, latest~1, a name or a path"""
    runs: str = "runs"
    """Folder in which runs are looked for"""
    json: bool = False
    """Print a JSON list instead of a table"""


def main(argv: list[str]) -> int:
    options = parse(Options, "ratings", argv)
    from fugu.algorithm.parts.ratings import players
    from fugu.run import store
    from fugu.trainer import checkpoint

    folder = store.find(options.run, options.runs)
    saved = checkpoint.load(checkpoint.find(folder.checkpoints, "latest"))
    if "ratings" not in saved.tensors.get("algorithm", {}):
        raise ConfigError(f"{folder.path} has no rating table: it was not trained with --algorithm self_play")
    with checkpoint.fitting_into(saved.path):
        learner, *earlier = players(saved.tensors["algorithm"]["ratings"])
    learner.steps = saved.step
    if options.json:
        print(json.dumps([dataclasses.asdict(player) for player in (*earlier, learner)], indent=1))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("version of step", "rating", "+-", "games"):
        table.add_column(title, justify="right", no_wrap=True)
    for player in (*earlier, learner):
        now = " (now)" if player is learner else ""
        table.add_row(f"{player.steps:,}{now}", f"{player.rating:.1f}", f"{2 * player.doubt:.1f}", f"{player.games:,}")
    console().print(table)
    return 0
