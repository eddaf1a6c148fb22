"""The extras of this installation, as the package's metadata lists them, and what of each is not installed."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache

PACKAGE = "fugu-rl"

PURPOSES = {
    "pettingzoo": "multi-agent environments",
    "sb3": "our vector envs under Stable-Baselines3",
    "torchrl": "our vector envs under TorchRL",
    "atari": "Atari",
    "mujoco": "MuJoCo",
    "minigrid": "MiniGrid and BabyAI",
    "envs": "all of these environments, and PettingZoo's games",
    "data": "recorded episodes in Minari's HDF5 layout",
    "plot": "fugu plot",
    "video": "fugu video",
    "tb": "TensorBoard",
    "wandb": "Weights & Biases",
    "tokens": "Hugging Face tokenizers",
    "memory": "approximate search in large memories",
    "ray": "environments and nodes on a Ray cluster",
    "peers": "libraries that fugu bench compares with",
}
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([\w.,\s-]*)\])?[^;]*(?:;(.*))?")
_OF_AN_EXTRA = re.compile(r"""\s*extra\s*==\s*["']([\w.-]+)["']\s*""")


def extras() -> dict[str, list[str]]:
    """Return the packages that are missing of every extra; PackageNotFoundError where fugu itself is not installed as one."""
    names = importlib.metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    return {name: sorted(_missing(PACKAGE, name)) for name in names}


@cache
def _missing(package: str, extra: str) -> frozenset[str]:
    """Return the packages that an extra of ``package`` needs and that are not installed."""
    missing: set[str] = set()
    for requirement in importlib.metadata.requires(package) or ():
        found = _REQUIREMENT.match(requirement)
        marker = _OF_AN_EXTRA.fullmatch(found[3] or "") if found else None
        if found is None or marker is None or marker[1] != extra:
            continue  # also what only other systems or versions of Python need
        name = found[1]
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            missing.add(name)
            continue
        for inner in re.findall(r"[\w.-]+", found[2] or ""):
            missing |= _missing(name, inner)
    return frozenset(missing)
