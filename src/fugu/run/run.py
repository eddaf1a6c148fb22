"""A run as an object, which ``fugu.train`` returns and every command works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fugu.config import fitting
from fugu.run import store
from fugu.trainer.config import TrainConfig, read_config

if TYPE_CHECKING:
    from fugu.run.policy import Policy
    from fugu.trainer.loop import Trainer


class Run:
    """A folder with a config, metrics and checkpoints. ``text`` is its path, its name, ``latest`` or ``latest~1``."""

    def __init__(self, text: str | Path | store.RunFolder, root: str | Path = "runs") -> None:
        self.folder = text if isinstance(text, store.RunFolder) else store.find(str(text), Path(root))
        self.config: TrainConfig = read_config(self.folder.config)
        self.trainer: Trainer | None = None
        """the trainer while the run is being trained here, for callbacks"""

    @property
    def path(self) -> Path:
        return self.folder.path

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics, one mapping per logged update."""
        return self.folder.read_metrics()

    def frame(self, kind: str | None = None) -> Any:
        """The metrics and timings as a DataFrame of ``pandas`` or ``polars``, one row per logged update."""
        from fugu.run.frame import frame

        return frame(self.folder.read_metrics(), self.folder.read_timing(), kind)

    def resume(self, *, callbacks: Sequence[Any] = (), **changes: Any) -> Run:
        """Train on from the newest checkpoint; ``changes`` as for ``fugu.train``, for example ``steps=2_000_000``."""
        from fugu.run.train import resume

        return resume(self, changes, callbacks)

    def policy(self, which: str | int = "latest", *, device: str = "cpu") -> Policy:
        """Load the policy of a checkpoint (``latest``, ``best`` or its step), to act with outside of any environment of fugu's."""
        from fugu.run.policy import Policy
        from fugu.trainer import checkpoint

        return Policy(self, checkpoint.find(self.folder.checkpoints, which), device=device)

    def evaluate(
        self,
        episodes: int = 100,
        *,
        which: str | int = "latest",
        greedy: bool = False,
        seed: int = 1,
        num_envs: int | None = None,
    ) -> Any:
        """Play whole episodes with a checkpoint (``latest``, ``best`` or its step) and return an ``Evaluation``."""
        episodes = fitting("episodes", episodes, int, 1)
        num_envs = fitting("num_envs", num_envs, int | None, 1)
        from fugu.run.player import Player

        with Player(self, which, num_envs=num_envs or min(episodes, 64), seed=seed) as player:
            return player.evaluate(episodes, greedy=greedy)

    def video(self, path: str | Path | None = None, **settings: Any) -> Path:
        """Play one episode and write it as mp4 or gif; returns the file."""
        from fugu.run.video import record

        return record(self, path, **settings)

    def plot(self, path: str | Path | None = None, **settings: Any) -> Path:
        """Draw the curves of the training (``metrics=("episode/return", "loss/kl")``, ``x="time"``); returns the file."""
        from fugu.run.curves import plot

        return plot([self.folder], path, **settings)

    def with_config(self, changes: Mapping[str, Any]) -> TrainConfig:
        from fugu.config import override

        return override(self.config, changes) if changes else replace(self.config)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"
