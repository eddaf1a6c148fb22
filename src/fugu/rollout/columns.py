"""The columns of a batch: the meaning of each, the part that writes it, and whether a row or a segment has it.

A new column is a line here, beside the code that writes it and the code that reads it. Columns that only one algorithm knows need
no line: a row's columns pass under any name, and a segment's are named when they are added (``Batch.also_once``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fugu.errors import ConfigError

if TYPE_CHECKING:
    from fugu.emulation.env import EnvSpec


@dataclass(frozen=True)
class Column:
    name: str
    written_by: str
    """environment, policy, source or algorithm"""
    text: str
    once: bool = False
    """True if a segment has it once; else every row has it"""
    after: str | None = None
    """for a policy's column: the column that keeps the same for the row after the last"""


TABLE = (
    Column("obs", "environment", "what the agent saw, as a row of its layout"),
    Column("first", "environment", "whether the row is the first of its episode"),
    Column("mask", "environment", "whether the action counted"),
    Column("action_mask", "environment", "which discrete actions were allowed; missing where nothing was forbidden"),
    Column("reward", "environment", "what the action brought"),
    Column("terminated", "environment", "whether the action ended the episode"),
    Column("truncated", "environment", "whether the action was the last before a limit"),
    Column("cost", "environment", "what the action cost, one number per kind"),
    Column("lost", "source", "whether the environment was lost in this step, and replaced; missing where none was"),
    Column("action", "policy", "the action as the policy drew it"),
    Column("logprob", "policy", "log-probability of the action, or of each of its choices"),
    Column("value", "policy", "return expected from here on", after="bootstrap"),
    Column("cost_value", "policy", "costs expected from here on", after="cost_bootstrap"),
    Column("player", "policy", "who acted: 0 for the learner, else the number of an earlier version"),
    Column("state", "source", "memory of the recurrent core before the first row", once=True),
    Column("bootstrap", "source", "value of the row after the last", once=True),
    Column("cost_bootstrap", "source", "costs expected from the row after the last on", once=True),
    Column(
        "acts_after",
        "source",
        "mask of the row after the last: from a replay, and where agents may wait for each other",
        once=True,
    ),
    Column(
        "obs_after", "source", "what the agent saw on the row after the last, where rows are drawn from a replay", once=True
    ),
    Column("action_mask_after", "source", "which discrete actions were allowed on the row after the last", once=True),
    Column("group", "source", "which episodes began alike", once=True),
    Column("score", "source", "return of the episode; NaN if it has none", once=True),
    Column("round", "source", "how often the group was drawn anew", once=True),
    Column("time", "source", "steps since the episode began, where rows are drawn from recorded episodes"),
    Column("to_go", "source", "undiscounted sum of the rewards from here to the end of the episode; from recorded episodes"),
    Column("advantage", "algorithm", "how much better the action was than expected"),
    Column("value_target", "algorithm", "what the value should have been"),
    Column("value_now", "algorithm", "value in the units that values have since the batch was prepared"),
    Column("bootstrap_now", "algorithm", "bootstrap in these units", once=True),
    Column("priority", "algorithm", "how likely the segment is drawn", once=True),
    Column("importance", "source, algorithm", "what the segment counts for when it was drawn by priority", once=True),
    Column("agent", "algorithm", "which agent of its world the segment belongs to", once=True),
)

PER_SEGMENT = frozenset(column.name for column in TABLE if column.once)

BOOTSTRAPS = {column.name: column.after for column in TABLE if column.after is not None}
"""columns that a policy is also asked for on the row after the last -> the column that keeps the answer"""


def check_free(spec: EnvSpec, acted: Iterable[str] = ()) -> None:
    """Refuse environments that declare a column under a name that means something else in a batch, or that a policy keeps."""
    taken = {column.name for column in TABLE}.union(acted)
    for name in spec.columns:
        if name in taken:
            raise ConfigError(
                f"columns of {spec.name}: a batch has a column {name!r} already",
                fix=f"Give it another name, such as own_{name}",
            )
