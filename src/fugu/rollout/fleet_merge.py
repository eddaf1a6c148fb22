"""The parts of a batch that the nodes of a fleet played, put together: in the order of the nodes, whatever the order they came in.

Segment s of a batch belongs to agent ``s % agents``, pass after pass, so each pass has the agents of all nodes. Whole episodes are as
long as the longest of all nodes, and their groups are counted over all nodes. The part of a node that was lost is masked: zeros, of
which nothing is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fugu.emulation.columns import blanks
from fugu.rollout.batch import Batch
from fugu.rollout.flat import Form, bytes_in, tensor_of
from fugu.rollout.fleet_node import Played

OPTIONAL = {"action_mask": True, "lost": False}
"""columns that a batch has only where they say something -> what they say elsewhere"""


@dataclass
class Part:
    """A part of a batch, as bytes."""

    segments: int
    horizon: int
    forms: dict[str, Form]
    content: dict[str, np.ndarray]
    """[bytes] by column, which may lie in Ray's store"""
    once: frozenset[str]


def part_of(played: Played) -> Part:
    forms = {form.name: form for form in played.header}
    segments, horizon = forms["reward"].shape
    return Part(segments, horizon, forms, bytes_in(played.header, played.block), played.once)


def lost_part(segments: int, horizon: int, like: Part, groups: int) -> Part:
    """Return the part of a node that was lost: of the columns that ``like`` has, with nothing to learn from. ``groups``: its groups of
    episodes, if there are any."""
    forms: dict[str, Form] = {}
    content: dict[str, np.ndarray] = {}
    for name, form in like.forms.items():
        inner = form.shape[1:] if name in like.once else (horizon, *form.shape[2:])
        forms[name] = Form(name, form.dtype, (segments, *inner))
        content[name] = np.zeros(forms[name].nbytes, np.uint8)
    for name in {*blanks(), "action_mask"} & forms.keys():
        content[name][:] = _filled(forms[name], True if name == "action_mask" else blanks()[name])
    first = np.zeros((segments, horizon), np.uint8)
    first[:, 0] = 1  # the rows before have no successor here
    content["first"] = first.reshape(-1)
    content["mask"][:] = 0
    lost = np.ones(segments * horizon, np.uint8)
    forms["lost"], content["lost"] = Form("lost", torch.bool, (segments, horizon)), lost
    if "score" in forms:
        content["score"] = _filled(forms["score"], float("nan"))
        own = np.arange(segments) * groups // segments
        content["group"] = np.frombuffer(own.astype(np.int64).tobytes(), np.uint8)
        del forms["lost"], content["lost"]  # an episode without a score is known to be lost
    return Part(segments, horizon, forms, content, like.once)


def merged(parts: Sequence[Part], passes: int, groups: Sequence[int]) -> Batch:
    """Return the batch of all parts, in new memory. ``groups``: how many groups of episodes each has; 0 if there are none."""
    horizon = max(part.horizon for part in parts)
    names = dict.fromkeys(name for part in parts for name in part.forms)
    once = frozenset[str]().union(*(part.once for part in parts))
    columns = {}
    for name in names:
        like = next(part.forms[name] for part in parts if name in part.forms)
        blocks = [_column(part, name, like, once, horizon, passes) for part in parts]
        if name == "group":
            blocks = [_counted_on(block, sum(groups[:i])) for i, block in enumerate(blocks)]
        joined = np.concatenate(blocks, axis=1)
        inner = like.shape[1:] if name in once else (horizon, *like.shape[2:])
        segments = joined.shape[0] * joined.shape[1]
        columns[name] = tensor_of(joined.reshape(-1), like.dtype, (segments, *inner))
    return Batch(columns, once)


def _column(part: Part, name: str, like: Form, once: frozenset[str], horizon: int, passes: int) -> np.ndarray:
    """Return a column of a part, ``[passes, agents, bytes]``, as long as the whole batch."""
    form = part.forms.get(name)
    if form is None:
        assert name in OPTIONAL, f"the part of a node has no column {name!r}"
        inner = like.shape[1:] if name in once else (part.horizon, *like.shape[2:])
        form = replace(like, shape=(part.segments, *inner))
        content = _filled(form, OPTIONAL[name])
    else:
        content = part.content[name]
    if name in once or part.horizon == horizon:
        return content.reshape(passes, part.segments // passes, -1)
    rows = content.reshape(part.segments, part.horizon, -1)
    grown = np.zeros((part.segments, horizon, rows.shape[2]), np.uint8)
    grown[:, : part.horizon] = rows
    if name in OPTIONAL:
        grown[:, part.horizon :] = OPTIONAL[name]
    return grown.reshape(passes, part.segments // passes, -1)


def _filled(form: Form, value: float | bool) -> np.ndarray:
    """Return the bytes of a column with one value everywhere."""
    return torch.full(form.shape, value, dtype=form.dtype).reshape(-1).view(torch.uint8).numpy()


def _counted_on(block: np.ndarray, by: int) -> np.ndarray:
    """Return groups counted from ``by`` on."""
    return (np.ascontiguousarray(block).view(np.int64) + by).view(np.uint8)
