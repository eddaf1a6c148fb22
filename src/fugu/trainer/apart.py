"""Keep what differs between ranks in a checkpoint: environments, generators, sums over running episodes, the rows of a replay.

Rank 0 writes. Its state stands where that of a single process does; of every other rank there is a group ``rank_N`` with its
environments, its score's marks and its replay, and with whatever else is not the same as on rank 0 (``GROUP/NAME`` -> tensor).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fugu.ranks import Ranks
from fugu.rollout.source import Page

OWN_GROUPS = ("envs", "score", "replay")
"""groups that every rank has for itself"""
PAGE = "page "

Groups = Mapping[str, Mapping[str, Tensor]]


def of_other_ranks(ranks: Ranks, groups: Groups, pages: Iterable[Page]) -> dict[str, dict[str, Tensor]]:
    """Return the groups of all ranks but the first; all ranks call it."""
    if ranks.size == 1:
        return {}
    flat = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
    shared = {name: tensor for name, tensor in flat.items() if name.partition("/")[0] not in OWN_GROUPS}
    mine = {name: _digest(tensor) for name, tensor in shared.items()}
    first = ranks.broadcast(mine)
    own: dict[str, Tensor] = {}
    if ranks.rank:
        own = {name: tensor.cpu() for name, tensor in flat.items() if name not in shared or first.get(name) != mine[name]}
        for number, page in enumerate(pages):
            own |= {f"{PAGE}{number:06d}/{name}": column.cpu() for name, column in page.columns().items()}
    return {f"rank_{rank}": found for rank, found in enumerate(ranks.gather(own)) if rank}


def of_this_rank(ranks: Ranks, groups: Groups, pages: Iterable[Page]) -> tuple[dict[str, dict[str, Tensor]], list[Page]]:
    """Return the groups and pages of a checkpoint as this rank had them."""
    found = {group: dict(named) for group, named in groups.items() if not group.startswith("rank_")}
    if ranks.rank == 0:
        return found, list(pages)
    for group in OWN_GROUPS:
        found.pop(group, None)
    columns: dict[str, dict[str, Tensor]] = {}
    for name, tensor in groups[f"rank_{ranks.rank}"].items():
        group, _, key = name.partition("/")
        (columns if group.startswith(PAGE) else found).setdefault(group, {})[key] = tensor
    return found, [_page(columns[number]) for number in sorted(columns)]


def _page(columns: dict[str, Tensor]) -> Page:
    return Page(lambda: columns)


def _digest(tensor: Tensor) -> bytes:
    data = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.blake2b(data.view(torch.uint8).numpy().tobytes() if data.numel() else b"", digest_size=16).digest()
