"""A run as an object, which ``fugu.train`` returns and every command works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fugu.config import fitting, read_toml
from fugu.emulation.place import is_code
from fugu.run import store
from fugu.run.given import Given, put
from fugu.run.trust import Gate, text_of
from fugu.trainer.config import TrainConfig, read_config

if TYPE_CHECKING:
    from fugu.run.policy import Policy
    from fugu.trainer.loop import Trainer


class Run:
    """A folder with a config, metrics and checkpoints. ``text`` is its path, its name, ``latest`` or ``latest~1``.

    ``env``, ``policy`` and ``algorithm`` take the place of what the run names: a file that was moved, or what existed only in the
    session that trained. Code that a run names is executed if this user made the run in this place, or with ``trust_code``.
    """

    def __init__(
        self,
        text: str | Path | store.RunFolder,
        root: str | Path = "runs",
        *,
        env: Any = None,
        policy: Any = None,
        algorithm: Any = None,
        trust_code: bool = False,
    ) -> None:
        self.folder = text if isinstance(text, store.RunFolder) else store.find(str(text), Path(root))
        self.trainer: Trainer | None = None
        """the trainer while the run is being trained here, for callbacks"""
        self.given: Given = {
            role: value for role, value in (("env", env), ("policy", policy), ("algorithm", algorithm)) if value is not None
        }
        self.trust_code = trust_code
        data = read_toml(self.folder.config)
        self.gate = Gate(self.folder, data, frozenset(self.given), trust_code)
        if not is_code(text_of(data, "algorithm")):
            self.config  # noqa: B018 - what is wrong with it shows here

    @cached_property
    def config(self) -> TrainConfig:
        """Return the settings. The class of an algorithm of the user's own is loaded for its own."""
        return read_config(self.folder.config, lambda data: put(data, self.given, self.gate))

    @property
    def path(self) -> Path:
        return self.folder.path

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics, one mapping per logged update."""
        return self.folder.read_metrics()

    def frame(self, kind: str | None = None) -> Any:
        """Return the metrics and timings as a DataFrame of ``pandas`` or ``polars``, one row per logged update."""
        from fugu.run.frame import frame

        return frame(self.folder.read_metrics(), self.folder.read_timing(), kind)

    def policy(self, which: str | int = "latest", *, device: str = "cpu") -> Policy:
        """Load the policy of a checkpoint (``latest``, ``best`` or its step), to act with outside of any environment of fugu's."""
        from fugu.run.policy import Policy
        from fugu.trainer import checkpoint

        return Policy(self, checkpoint.find(self.folder.checkpoints, which), device=device)

    def resume(
        self,
        *,
        env: Any = None,
        policy: Any = None,
        algorithm: Any = None,
        trust_code: bool = False,
        callbacks: Sequence[Any] = (),
        **changes: Any,
    ) -> Run:
        """Train on from the newest checkpoint; ``changes`` and ``callbacks`` as for ``fugu.train``, for example
        ``steps=2_000_000``."""
        from fugu.run.train import resume

        if isinstance(policy, Mapping):
            changes, policy = {**changes, "policy": policy}, None
        return resume(self.with_code(env=env, policy=policy, algorithm=algorithm, trust_code=trust_code), changes, callbacks)

    def evaluate(
        self,
        episodes: int = 100,
        *,
        which: str | int = "latest",
        greedy: bool = False,
        seed: int = 1,
        num_envs: int | None = None,
        **code: Any,
    ) -> Any:
        """Play whole episodes with a checkpoint (``latest``, ``best`` or its step) and return an ``Evaluation``. ``code``: ``env``,
        ``policy``, ``algorithm`` and ``trust_code``, as for the run itself."""
        episodes = fitting("episodes", episodes, int, 1)
        num_envs = fitting("num_envs", num_envs, int | None, 1)
        from fugu.run.player import Player

        run = self.with_code(**code)
        with Player(run, which, num_envs=num_envs or min(episodes, 64), seed=seed) as player:
            return player.evaluate(episodes, greedy=greedy)

    def video(self, path: str | Path | None = None, **settings: Any) -> Path:
        """Play one episode and write it as mp4 or gif; returns the file."""
        from fugu.run.video import record

        code = {name: settings.pop(name) for name in ("env", "policy", "algorithm", "trust_code") if name in settings}
        return record(self.with_code(**code), path, **settings)

    def plot(self, path: str | Path | None = None, **settings: Any) -> Path:
        """Draw the curves of the training (``metrics=("episode/return", "loss/kl")``, ``x="time"``); returns the file."""
        from fugu.run.curves import plot

        return plot([self.folder], path, **settings)

    def with_code(self, *, env: Any = None, policy: Any = None, algorithm: Any = None, trust_code: bool = False) -> Run:
        """Return this run with code in the place of what it names; itself if nothing is given."""
        new = {"env": env, "policy": policy, "algorithm": algorithm}
        if not trust_code and all(value is None for value in new.values()):
            return self
        found = {role: value for role, value in new.items() if value is not None}
        return Run(self.folder, trust_code=trust_code or self.trust_code, **{**self.given, **found})

    def with_config(self, changes: Mapping[str, Any]) -> TrainConfig:
        from fugu.config import override

        return override(self.config, changes) if changes else replace(self.config)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"
