"""A group of runs that differ in their seed, as an object, which ``fugu.train(..., seeds=5)`` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.errors import ConfigError, did_you_mean
from fugu.run import store
from fugu.run.run import Run
from fugu.run.spread import interval, mean


class Group:
    """The runs of a group, in the order of their seeds. ``text`` is its name in ``root``, or its path; ``code`` is as for a run."""

    def __init__(self, text: str | Path, root: str | Path = "runs", **code: Any) -> None:
        self.code = code
        """what takes the place of the code that its runs name"""
        self.folders = store.members(text, root)
        if not self.folders:
            groups = {label.group for label in (run.label for run in store.runs(root)) if label.group is not None}
            hint = did_you_mean(str(text), groups) if groups else " fugu train ENV --seeds 5 makes one"
            raise ConfigError(f"there is no group of runs {str(text)!r} in {root}.{hint}")
        labels = [folder.label for folder in self.folders]
        self.name = str(labels[0].group)
        self.root = self.folders[0].path.parent
        self.seeds: tuple[int, ...] = tuple(dict.fromkeys(seed for label in labels for seed in label.seeds))
        """seeds of the group, those without a run included"""

    @property
    def path(self) -> Path:
        """Return what commands call the group: its name in the folder of its runs."""
        return self.root / self.name

    @property
    def runs(self) -> list[Run]:
        """Return the runs there are, in the order of the group's seeds."""
        runs = [Run(folder, **self.code) for folder in self.folders]
        place = {seed: number for number, seed in enumerate(self.seeds)}
        return sorted(runs, key=lambda run: place.get(run.config.seed, len(place)))

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.folders)

    def resume(self, *, callbacks: Sequence[Any] = (), **changes: Any) -> Group:
        """Train on the runs that are not finished, and begin those that are missing; ``changes`` as for ``Run.resume``."""
        from fugu.run.seeds import resume_group

        code: dict[str, Any] = {
            name: changes.pop(name) for name in ("env", "policy", "algorithm", "trust_code") if name in changes
        }
        if isinstance(code.get("policy"), Mapping):
            changes["policy"] = code.pop("policy")
        group = Group(self.path, self.root, **{**self.code, **code}) if code else self
        return resume_group(group, changes, callbacks)

    def evaluate(self, episodes: int = 100, **settings: Any) -> GroupEvaluation:
        """Play ``episodes`` whole episodes with each run's policy; ``settings`` as for ``Run.evaluate``."""
        return GroupEvaluation({run.config.seed: run.evaluate(episodes, **settings) for run in self})

    def plot(self, path: str | Path | None = None, **settings: Any) -> Path:
        """Draw the mean of the runs' curves with their standard error; returns the file. ``settings`` as for ``Run.plot``."""
        from fugu.run.curves import plot

        return plot((), path, groups={self.name: self.folders}, **settings)

    def __repr__(self) -> str:
        return f"Group({str(self.path)!r})"


@dataclass(frozen=True)
class GroupEvaluation:
    """Whole episodes of each run of a group."""

    by_seed: dict[int, Any]
    """seed -> the run's ``Evaluation``"""

    @property
    def means(self) -> tuple[float, ...]:
        """Return the mean return of each run."""
        return tuple(one.mean for one in self.by_seed.values())

    @property
    def mean(self) -> float:
        """Return the mean of the runs' means: each seed counts the same."""
        return mean(self.means)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95% confidence interval of the mean over seeds (Student's t); nan for one run."""
        return interval(self.means)

    def __str__(self) -> str:
        low, high = self.interval
        known = len(self.means) > 1
        certainty = f"95% interval over seeds {low:.2f} to {high:.2f}" if known else "interval unknown from one seed"
        return f"{len(self.means)} seed{'s' * known}: mean return {self.mean:.2f} ({certainty})"
