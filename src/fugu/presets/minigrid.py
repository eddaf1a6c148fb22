"""Settings for minigrid environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fugu.trainer.config import TrainConfig

PRESETS: Mapping[str, Callable[[], TrainConfig]] = {}
