"""Past solutions, found again for tasks that are worded alike.

``remember`` notes a solution, ``flush`` stores what was noted: called where a batch ends, so that what is found does not depend on
which of the environments was faster. What was found is text an agent wrote: it may go into a prompt, and nowhere else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from fugu.coding.memory.contract import Index
from fugu.coding.memory.embed import TextEmbedding
from fugu.coding.memory.exact import ExactIndex
from fugu.coding.memory.filters import And, Attribute, Eq, Filter, Not, Range
from fugu.coding.task import Task
from fugu.errors import ConfigError


@dataclass(frozen=True)
class Remembered:
    task_id: str
    prompt: str
    completion: str
    reward: float
    likeness: float
    """of the prompts, up to 1"""


class SolutionMemory:
    """One solution per task: the one with the highest reward of a batch, of these the shortest; a later batch replaces it."""

    def __init__(self, index: Index | None = None, embedding: TextEmbedding | None = None) -> None:
        self.embedding = embedding or TextEmbedding(dim=index.dim if index is not None else 256)
        self.index: Index = index if index is not None else ExactIndex(self.embedding.dim)
        if self.index.dim != self.embedding.dim:
            raise ConfigError(f"the index has vectors of {self.index.dim} numbers, the embedding of {self.embedding.dim}")
        self._noted: dict[str, tuple[float, str, str]] = {}  # task -> (reward, completion, prompt)

    def remember(self, task: Task, completion: str, reward: float = 1.0) -> None:
        new = (reward, completion, task.prompt)
        old = self._noted.get(task.id, new)
        self._noted[task.id] = max(old, new, key=lambda each: (each[0], -len(each[1]), each[1]))

    def flush(self) -> None:
        noted = sorted(self._noted.items())
        self._noted.clear()
        if not noted:
            return
        attributes: list[dict[str, Attribute]] = [
            {"task": name, "prompt": prompt, "completion": completion, "reward": float(reward)}
            for name, (reward, completion, prompt) in noted
        ]
        vectors = self.embedding([prompt for _, (_, _, prompt) in noted])
        self.index.upsert([_key(name) for name, _ in noted], vectors, attributes)

    def similar(self, tasks: Sequence[Task], top_k: int = 3, *, min_reward: float | None = None) -> list[list[Remembered]]:
        """Find for each task what was remembered of others like it, the most similar first; never its own solution."""
        vectors = self.embedding([task.prompt for task in tasks])
        out = []
        for task, vector in zip(tasks, vectors, strict=True):
            others: Filter = Not(Eq("task", task.id))
            where = others if min_reward is None else And(others, Range("reward", low=min_reward))
            (near,) = self.index.query(vector, top_k, where)
            out.append(
                [
                    Remembered(
                        task_id=str(each.attributes.get("task", "")),
                        prompt=str(each.attributes.get("prompt", "")),
                        completion=str(each.attributes.get("completion", "")),
                        reward=float(each.attributes.get("reward") or 0.0),
                        likeness=each.score,
                    )
                    for each in near
                ]
            )
        return out

    def prompt(self, task: Task, top_k: int = 1, *, min_reward: float | None = None) -> str:
        """Return the task's prompt, after similar ones with their solutions, the most similar last."""
        (near,) = self.similar([task], top_k, min_reward=min_reward)
        return "".join(f"{each.prompt}\n{each.completion}\n\n" for each in reversed(near)) + task.prompt

    def count(self) -> int:
        return self.index.count()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the index with what has been noted."""
        self.flush()
        self.index.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SolutionMemory:
        return cls(ExactIndex.load(path))


def _key(task_id: str) -> str:
    return hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
