"""Many environments at once: one batch of rows, stepped in this process or by others.

``buffers`` (the memory) -> ``shard`` (some envs, stepped in order) -> ``serial`` and ``process`` (who runs the shards)
-> ``vecenv`` (what the user holds) -> ``make`` (how one gets it) -> ``adapters`` (faces for other libraries).
"""

from typing import TYPE_CHECKING, Any

from fugu.vector.config import VectorConfig
from fugu.vector.make import make
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
    from fugu.vector.adapters import as_gymnasium, as_pettingzoo, as_sb3, as_torchrl
    from fugu.vector.autotune import autotune

__all__ = ["VecEnv", "VectorConfig", "as_gymnasium", "as_pettingzoo", "as_sb3", "as_torchrl", "autotune", "make"]


def __getattr__(name: str) -> Any:
    if name in ("as_gymnasium", "as_pettingzoo", "as_sb3", "as_torchrl"):
        from fugu.vector import adapters

        return getattr(adapters, name)
    if name == "autotune":
        from fugu.vector.autotune import autotune

        return autotune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
