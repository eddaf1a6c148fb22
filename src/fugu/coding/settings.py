"""Make the parts of a coding environment from its settings: its tasks, its tokenizer and how much room texts have.

``material(config)`` is made once per process and shared by all environments with the same settings.
"""

from __future__ import annotations

import functools
import hashlib
import random
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fugu import files
from fugu.coding import builtin, tokens
from fugu.coding.formats import load_tasks
from fugu.coding.memory.solutions import SolutionMemory
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.task import Task
from fugu.errors import ConfigError

MOST = 1_000_000
"""value of a number in these settings"""
FEEDBACK = 48
"""tokens that what happened in visible tests gets in the next prompt, unless the room is given"""
_SAMPLES = 100  # tasks of each level that room is measured on
_LATELY = 4096  # prompts that are kept
_SPARE = 2  # tokens more than the longest of them


@dataclass(frozen=True, kw_only=True)
class CodingConfig:
    """Settings of the coding environment: its tasks, how the agent answers, what it is paid, and where its programs run."""

    tasks: str | None = None
    """File of tasks (JSONL, also in the formats of HumanEval, MBPP and APPS); none: the built-in tasks"""
    level: int | tuple[int, ...] = 1
    """Number of operations that a built-in task is made of, 1 to 3; several numbers: any of them"""
    held_out: bool = False
    """Use the tasks that are otherwise never shown, instead of the others"""
    mode: Literal["completion", "token"] = "completion"
    """Meaning of an action: completion (a whole answer) or token (its next token)"""
    turns: int = 1
    """Answers to a task before it is over; after each wrong one the prompt says what happened in the visible tests"""
    reward: Literal["all", "fraction"] = "all"
    """Reward of the last answer: all (1 if it passes all tests) or fraction (the share of tests it passes)"""
    tokenizer: str = "pairs"
    """Tokenizer: pairs (trained on the tasks), characters, or a file: a saved one, or Hugging Face's tokenizer.json"""
    vocabulary: int = 420
    """Number of tokens of the pairs tokenizer"""
    prompt_tokens: int | None = None
    """Room for prompts, in tokens; none: as much as the tasks need"""
    answer_tokens: int | None = None
    """Room for answers, in tokens; none: as much as the reference solutions need"""
    memory: str | None = None
    """File of solutions of other tasks, written by ``SolutionMemory.save``: the most similar goes into the prompt; none: no memory"""
    share_process: bool = False
    """Run all call tests of an answer in one process: several times as fast, but an answer can tell a second call from a first"""
    backend: str = "fork"
    """Backend of the sandbox: fork, subprocess, bubblewrap, docker, podman or http"""
    min_level: int = 3
    """Level of isolation below which nothing is run: 3 namespaces, 2 Landlock, 1 seccomp, 0 nothing but limits"""
    allow: tuple[str, ...] = ()
    """Names of isolation features of that level that may be missing nevertheless"""
    workers: int | None = None
    """Processes that run programs in the sandbox; none: one per usable core"""
    cache: int = 4096
    """Outcomes that are remembered, because groups often give the same answer twice; 0: none"""

    def __post_init__(self) -> None:
        levels = self.level if isinstance(self.level, tuple | list) else (self.level,)
        if not levels or any(level not in builtin.LEVELS for level in levels):
            raise ConfigError(f"level={self.level!r} must be among {', '.join(map(str, builtin.LEVELS))}")
        object.__setattr__(self, "level", tuple(levels))
        object.__setattr__(self, "held_out", bool(self.held_out))
        object.__setattr__(self, "allow", (self.allow,) if isinstance(self.allow, str) else tuple(self.allow))
        for name, choices in (("mode", ("completion", "token")), ("reward", ("all", "fraction"))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be {' or '.join(choices)}")
        for name in ("turns", "vocabulary", "prompt_tokens", "answer_tokens", "workers"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
            if value is not None and value > MOST:
                raise ConfigError(f"{name}={value} must be at most {MOST}")

    @property
    def sandbox(self) -> SandboxConfig:
        return SandboxConfig(
            backend=self.backend,  # type: ignore[arg-type]
            min_level=self.min_level,
            allow=self.allow,
            workers=self.workers,
            cache=self.cache,
        )


@dataclass(frozen=True, eq=False)
class Material:
    tokenizer: tokens.Tokenizer
    tasks: tuple[Task, ...] | None
    """of a file, those that are shown; None: built-in ones are made as they are needed"""
    levels: tuple[int, ...]
    held_out: bool
    prompt_tokens: int
    answer_tokens: int
    memory: SolutionMemory | None = None
    _prompts: dict[str, np.ndarray] = field(default_factory=dict)
    """those made lately, by the id of their task: groups ask for the same one"""

    def prompt(self, task: Task) -> np.ndarray:
        """Return ``int32 [length]``: the task as it is asked first, after the nearest solved one if there is memory and room."""
        if task.id not in self._prompts:
            if len(self._prompts) >= _LATELY:
                self._prompts.clear()
            self._prompts[task.id] = self._encoded(task)
        return self._prompts[task.id]

    def _encoded(self, task: Task) -> np.ndarray:
        if self.memory is not None:
            ids = self.tokenizer.encode(self.memory.prompt(task))
            if len(ids) <= self.prompt_tokens:
                return ids
        ids = self.tokenizer.encode(task.prompt)
        if len(ids) > self.prompt_tokens:
            raise ConfigError(
                f"the prompt of task {task.id!r} has {len(ids)} tokens, and there is room for {self.prompt_tokens}; "
                f"try --env.prompt-tokens {len(ids)}"
            )
        return ids

    def draw(self, chance: random.Random) -> Task:
        """Draw a task by chance."""
        if self.tasks is None:
            return builtin.make(chance.randrange(2**31), chance.choice(self.levels), held_out=self.held_out)
        return self.tasks[chance.randrange(len(self.tasks))]

    def named(self, name: Any) -> Task:
        """Return the task of a file with this id, or the built-in one of this seed."""
        if self.tasks is None:
            if isinstance(name, bool) or not isinstance(name, int) or name < 0:
                raise ConfigError(f"task={name!r}: built-in tasks are named by a whole number, their seed")
            return builtin.make(name, self.levels[0], held_out=self.held_out)
        found = next((task for task in self.tasks if task.id == name), None)
        if found is None:
            raise ConfigError(f"there is no task {name!r} among these {len(self.tasks)}, such as {self.tasks[0].id!r}")
        return found


@functools.lru_cache(maxsize=16)
def material(config: CodingConfig) -> Material:
    """Return everything that the environments of a process share."""
    assert isinstance(config.level, tuple)
    if config.tasks is not None:  # a run that somebody else made may name anything
        files.refuse_odd(Path(config.tasks))
    tasks: tuple[Task, ...] | None = None
    if config.tasks is None:
        seen = [builtin.make(seed, level) for level in builtin.LEVELS for seed in range(_SAMPLES)]
    else:
        every = load_tasks(config.tasks)
        seen = [task for task in every if not in_test_set(task)]
        tasks = tuple(task for task in every if in_test_set(task) == config.held_out)
        if not tasks:
            which = "held-out tasks" if config.held_out else "tasks to learn from"
            raise ConfigError(f"{config.tasks} has {len(every)} tasks, among them no {which}")
        if config.answer_tokens is None and not any(task.solution for task in seen):
            raise ConfigError(f"{config.tasks} has no solutions to tell how long answers are; try --env.answer-tokens 256")
    tokenizer = _tokenizer(config, seen)
    prompt = config.prompt_tokens or _longest(tokenizer, (task.prompt for task in [*seen, *(tasks or ())]))
    answer = config.answer_tokens or _longest(tokenizer, (task.solution for task in seen)) + 1
    if config.turns > 1 and config.prompt_tokens is None:
        prompt += answer + FEEDBACK
    if config.memory is not None and config.prompt_tokens is None:
        prompt += prompt + answer
    memory = None if config.memory is None else SolutionMemory.load(config.memory)
    return Material(tokenizer, tasks, config.level, config.held_out, prompt, answer, memory)


def in_test_set(task: Task) -> bool:
    """Return True if a task of a file is held out: about a fifth of them, by their id, whatever else is in the file."""
    return int.from_bytes(hashlib.blake2b(task.id.encode(), digest_size=8).digest()) % 5 == 0


def _tokenizer(config: CodingConfig, seen: list[Task]) -> tokens.Tokenizer:
    if config.tokenizer == "characters":
        return tokens.train_characters([string.printable])
    if config.tokenizer != "pairs":
        return tokens.load(config.tokenizer)
    if config.tasks is None:
        return builtin.tokenizer(config.vocabulary)
    return tokens.train_pairs([text for task in seen for text in (task.prompt, task.solution)], config.vocabulary)


def _longest(tokenizer: tokens.Tokenizer, texts: Iterable[str]) -> int:
    return max((len(tokenizer.encode(text)) for text in texts), default=1) + _SPARE
