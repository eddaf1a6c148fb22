"""Is what a checkpoint holds of a replay something that a replay can have left? Its hashes only say that nobody changed it since.

Comes in: the counts, priorities, carry and pages of rows that ``Replay.kept`` made, or what claims to be that. A ConfigError says what
in it cannot be. Learning relies on the choices, flags and numbers of rows, as environments do on those of a snapshot
(``emulation/saved.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fugu.emulation.columns import present
from fugu.emulation.env import EnvSpec
from fugu.emulation.saved import check_obs, check_values, unfit
from fugu.errors import ConfigError, SpaceError
from fugu.policy.distribution import Distribution
from fugu.rollout.acting import Forms

MOST = 2**53
"""of anything that is counted: whole numbers up to it are exact everywhere"""
LARGEST = float(torch.finfo(torch.float32).max)
"""of a priority, which comes from numbers of the learner"""
COUNTS = ("agents", "begin", "end", "rows", "credit", "untold")


@dataclass(frozen=True)
class Counts:
    """Holds what a replay has counted, by the names of its own members."""

    agents: int
    begin: int
    end: int
    rows: int
    credit: int
    untold: int


def counts_of(saved: Mapping[str, Tensor], agents: int, most_due: int, of: str) -> Counts:
    """Return the counts in ``saved``. ``most_due``: rows that may still be learned from before any more are played."""
    column = _there(saved, "counts", (len(COUNTS),), torch.int64, of)
    counts = Counts(*column.tolist())
    if counts.agents != agents:
        raise ConfigError(
            f"the replay holds rows of {counts.agents} agents, and there are {agents} now; leave the number of environments as it was"
        )
    wrong = [name for name in COUNTS if not 0 <= getattr(counts, name) <= MOST]
    if wrong or counts.begin > counts.end or counts.untold > counts.rows or counts.credit > most_due:
        raise unfit("replay counts", of, f"is {column.tolist()}, which are no counts of rows")
    return counts


def check_priorities(saved: Mapping[str, Tensor], shape: tuple[int, int], of: str) -> None:
    """Refuse priorities that nothing can be drawn by."""
    highest = _there(saved, "highest", (), torch.float64, of).item()
    if not 0 < highest <= LARGEST:
        raise unfit("replay highest", of, f"is {highest}, which is no priority")
    if "weights" in saved:
        weights = newest(saved, "weights", shape, torch.float64, of)
        if not ((weights >= 0) & (weights <= LARGEST)).all():
            raise unfit("replay weights", of, "holds what is no priority")


def newest(saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...], dtype: torch.dtype, of: str) -> Tensor:
    """Return the last ``shape[1]`` rows of a column ``[agents, rows, ...]``."""
    column = saved.get(name)
    cut = None if column is None or column.dim() < 2 else column[:, max(0, column.shape[1] - shape[1]) :]
    found = _there({} if cut is None else {name: cut}, name, shape, dtype, of)
    if found.is_floating_point() and found.isnan().any():
        raise unfit(f"replay {name}", of, "holds NaN")
    return found


class Rows:
    """Describes a page of a replay. ``forms``: the columns of the ring that pages keep; ``acted``: those of them that the policy
    writes."""

    def __init__(self, spec: EnvSpec, agents: int, forms: Forms, acted: Forms, of: str) -> None:
        self.spec, self.agents, self.forms, self.of = spec, agents, forms, of
        self.environment = {form.name for form in present(spec)} - {"obs"}
        self.masks = {"action_mask": ((spec.choices,), torch.bool)} if spec.choices else {}
        self.choices = _choices(spec, acted)

    def checked(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the columns of a page that are known, if they can be rows of such environments and of such a policy."""
        mask, of = columns.get("mask"), self.of
        steps = mask.shape[1] if mask is not None and mask.dim() == 2 else 0
        if not steps:
            raise unfit("replay mask", of, "has no rows")
        forms = {**self.forms, **{name: form for name, form in self.masks.items() if name in columns}}
        found = {name: _there(columns, name, (self.agents, steps, *shape), dtype, of) for name, (shape, dtype) in forms.items()}
        for name in found.keys() & self.environment:
            check_values(f"replay {name}", found[name].numpy(), of)
        self._check_obs(found["obs"], found["mask"])
        if "action" in found:
            self._check_action(found["action"])
        return found

    def _check_obs(self, obs: Tensor, mask: Tensor) -> None:
        """Refuse observations that cannot be; of an agent that is absent there is none."""
        rows = obs.flatten(0, 1)
        absent = ~mask.flatten() & ~rows.flatten(1).any(1)
        check_obs(np.ascontiguousarray(rows[~absent].numpy()), self.spec.obs_layout, self.of)

    def _check_action(self, action: Tensor) -> None:
        check_values("replay action", action.numpy(), self.of)
        if self.choices is not None:
            chosen = action[..., : len(self.choices)].long()
            if ((chosen < 0) | (chosen >= self.choices)).any():
                raise unfit("replay action", self.of, f"holds actions outside {self.spec.action_space}")


def _choices(spec: EnvSpec, acted: Forms) -> Tensor | None:
    """Return how many choices the first columns of ``action`` have; None where a policy keeps actions in another form."""
    try:
        actions = Distribution(spec.action_space)
    except SpaceError:
        return None
    usual = acted.get("action") == ((actions.dims,), actions.dtype)
    return torch.tensor([*actions.counts, *[2] * actions.binaries]) if usual else None


def _there(columns: Mapping[str, Tensor], name: str, shape: tuple[int, ...], dtype: torch.dtype, of: str) -> Tensor:
    if name not in columns:
        raise unfit(f"replay {name}", of, "is missing, or has no rows")
    column = columns[name]
    if column.shape != shape or column.dtype != dtype:
        got, expected = f"{column.dtype}{list(column.shape)}", f"{dtype}{list(shape)}"
        raise unfit(f"replay {name}", of, f"is {got} instead of {expected}".replace("torch.", ""))
    return column
