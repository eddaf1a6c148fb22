"""The coding environment: the agent reads a task and writes a program, tests in a sandbox say what it is worth.

Observations are ``Dict(tokens=int32 [room], length)``: the prompt, then nothing (0). With ``mode="completion"`` an action is a whole
answer, ``MultiDiscrete([vocabulary] * room)``, which ends with END (1); a step is one answer and its execution. With
``mode="token"`` an action is one token, observations hold what was written so far, and the program runs when END comes or there is
no more room.

With ``turns`` above 1, a wrong answer is followed by a prompt that holds it and what happened in the visible tests; nothing of a hidden
test is ever shown. A program that the sandbox could not run is no answer at all: the reward is NaN and the episode is over.

Steps are computed in the sandbox (``Deferred``): the environments of a process share one, and a vector env has as many programs
running at once as it has environments. The same seed gives the same tasks in the same order.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.coding.judge import Verdict
from fugu.coding.sandbox.contract import printable
from fugu.coding.service import Service, ServiceConfig, acquire, release
from fugu.coding.settings import CodingConfig, material
from fugu.coding.task import Task
from fugu.coding.tokens import END, row
from fugu.emulation.env import Infos, Rows
from fugu.errors import ConfigError, did_you_mean
from fugu.spaces import Layout


class Coding:
    """One agent. ``settings`` are the fields of ``CodingConfig``."""

    name = "coding"
    num_agents = 1
    metadata: dict[str, Any] = {"unscored_rewards": True, "render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - as in Gymnasium
    render_mode = "ansi"

    def __init__(self, **settings: Any) -> None:
        unknown = [name for name in settings if name not in CodingConfig.__dataclass_fields__]
        if unknown:
            known = CodingConfig.__dataclass_fields__
            raise ConfigError(f"coding has no setting {unknown[0]!r}.{did_you_mean(unknown[0], known)}")
        config = self.config = CodingConfig(**settings)
        self.material = material(config)
        self.tokenizer = self.material.tokenizer
        answer, size = self.material.answer_tokens, self.tokenizer.size
        self._room = self.material.prompt_tokens + (answer if config.mode == "token" else 0)
        self.observation_space: gs.Space = gs.Dict(
            tokens=gs.Box(0, size - 1, (self._room,), np.int32), length=gs.Box(0, self._room, (), np.int32)
        )
        self.action_space: gs.Space = gs.Discrete(size) if config.mode == "token" else gs.MultiDiscrete([size] * answer)
        self._layout = Layout(self.observation_space)
        self._chance = random.Random()
        self._task: Task | None = None
        self._ended = True
        self._ticket: int | None = None
        self._verdict: Verdict | None = None
        self._service: Service | None = acquire(
            ServiceConfig(config.sandbox, fail_fast=config.reward == "all", share_process=config.share_process)
        )

    # --- what a vector env asks for ---

    def reset(self, seed: int | None, out: Rows, options: dict[str, Any] | None = None) -> Infos | None:
        """Ask for a new task. ``options={"task": ...}`` names it: the seed of a built-in one, or the id of one in the file."""
        if seed is not None:
            self._chance = random.Random(seed)
        self._drop()
        wanted = (options or {}).get("task")
        return self._start(self.material.draw(self._chance) if wanted is None else self.material.named(wanted), out)

    def step(self, action: np.ndarray, out: Rows) -> Infos | None:
        self.begin(action, out)
        while not self.ready():
            self.waiter.wait(0.1)
        return self.finish(out)

    def begin(self, action: np.ndarray, out: Rows) -> None:
        if self._ended:
            return
        if self.config.mode == "token":
            self._written.append(int(action[0]))
            if self._written[-1] != END and len(self._written) < self.material.answer_tokens:
                return
            answer = self._written
        else:
            answer = action[0].tolist()
        assert self._task is not None and self._service is not None
        self._answer = self.tokenizer.decode(answer)
        which = "hidden" if self.config.turns == 1 else "all"
        self._ticket = self._service.submit(self._task, self._task.source(self._answer), which)  # type: ignore[arg-type]
        self._executions += 1

    def ready(self) -> bool:
        if self._ticket is None:
            return True
        assert self._service is not None
        self._verdict = self._service.take(self._ticket)
        if self._verdict is not None:
            self._ticket = None
        return self._ticket is None

    def finish(self, out: Rows) -> Infos | None:
        if self._ended:
            return self._start(self.material.draw(self._chance), out)
        verdict, self._verdict = self._verdict, None
        out.reward[0], out.terminated[0], out.truncated[0] = 0, False, False
        out.first[0], out.mask[0] = False, True
        if verdict is None:  # a token of an answer that goes on
            self._show(self._prompt, self._written, out)
            return None
        return self._judged(verdict, out)

    @property
    def waiter(self) -> Service:
        assert self._service is not None, "closed"
        return self._service

    def close(self) -> None:
        self._drop()
        if self._service is not None:
            release(self._service)
            self._service = None

    # --- to look at, or to learn from ---

    def render(self) -> str:
        """Return what was asked, what was written so far, and what came of it, safe to print."""
        assert self._task is not None, "reset() first"
        answer = self.tokenizer.decode(self._written) if self._written else self._answer
        lines = [*self._task.prompt.splitlines(), "", *answer.splitlines(), "", self._said]
        return "\n".join(printable(line) for line in lines).strip("\n")

    def examples(self, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return ``obs [rows, *row]`` and ``action [rows, *row]``: ``count`` tasks with their reference solutions. With
        ``mode="token"`` there is a row for every token of them. Held-out tasks are not among them."""
        from dataclasses import replace

        shown = material(replace(self.config, held_out=False))
        chance = random.Random(f"examples {seed}")
        pairs = [self._example(shown.draw(chance)) for _ in range(count)]
        obs = self._layout.zeros(sum(len(prompts) for prompts, _ in pairs))
        views = self._layout.views(obs)
        prompts = [prompt for group, _ in pairs for prompt in group]
        for k, prompt in enumerate(prompts):
            views["tokens"][k, : len(prompt)] = prompt
            views["length"][k] = len(prompt)
        return obs, np.concatenate([actions for _, actions in pairs])

    def _example(self, task: Task) -> tuple[list[np.ndarray], np.ndarray]:
        if not task.solution:
            raise ConfigError(f"task {task.id!r} has no reference solution to show; leave imitation.examples at 0")
        prompt = self.material.prompt(task)
        answer = row(self.tokenizer.encode(task.solution), self.material.answer_tokens, end=True).astype(np.int64)
        if self.config.mode == "completion":
            return [prompt], answer[None]
        length = int(np.flatnonzero(answer == END)[0]) + 1
        return [np.concatenate([prompt, answer[:k]]) for k in range(length)], answer[:length]

    # --- inside ---

    def _start(self, task: Task, out: Rows) -> Infos | None:
        self._task, self._ended = task, False
        self._turn = self._executions = 0
        self._answer = self._said = ""
        self._written: list[int] = []
        self._prompt = self.material.prompt(task)
        out.start()
        self._show(self._prompt, [], out)
        return None

    def _judged(self, verdict: Verdict, out: Rows) -> Infos | None:
        """Pay for an answer that was run, and ask again or end."""
        assert self._task is not None
        self._turn += 1
        solved = verdict.status == "ok"
        self._said = f"{verdict.status}: {verdict.passed} of {verdict.total} tests. {verdict.detail}"
        self._ended = solved or not verdict.scored or self._turn == self.config.turns
        share = verdict.passed / verdict.total
        if not self._ended:
            self._prompt = self._next_prompt(self._task, self._answer, verdict.feedback)
        elif not verdict.scored:
            out.reward[0] = math.nan
        else:
            out.reward[0] = share if self.config.reward == "fraction" else float(solved)
        written, self._written = self._written, []
        self._show(self._prompt, written if self._ended else [], out)
        if not self._ended:
            return None
        out.terminated[0], out.mask[0] = True, False
        log = {"pass_rate": float(solved), "tests_passed": share, "executions": float(self._executions)}
        log |= {"turns": float(self._turn), f"status/{verdict.status}": 1.0}
        info = {"task": self._task.id, "status": verdict.status, "passed": verdict.passed, "total": verdict.total}
        return {0: {**info, "detail": verdict.detail, "answer": self._answer, "episode_log": log}}

    def _next_prompt(self, task: Task, answer: str, feedback: str) -> np.ndarray:
        """Write the next prompt: the task, the answer and what happened, as far as there is room."""
        text = f"{task.prompt}\n{answer}\n{feedback}"
        return self.tokenizer.encode(text)[: self.material.prompt_tokens]

    def _show(self, prompt: np.ndarray, written: list[int], out: Rows) -> None:
        if out.writer is None:
            out.writer = self._layout.views(out.obs)
        tokens, length = out.writer["tokens"][0], len(prompt) + len(written)
        tokens[:] = 0
        tokens[: len(prompt)] = prompt
        if written:
            tokens[len(prompt) : length] = written
        out.writer["length"][0] = length

    def _drop(self) -> None:
        """Drop what is running: nobody waits for it any more."""
        if self._ticket is not None and self._service is not None:
            self._service.drop(self._ticket)
        self._ticket = self._verdict = None
