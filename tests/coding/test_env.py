"""The coding environment over a sandbox that only pretends: what is seen, paid, remembered and shared, and what happens in between."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check

import fugu
from fugu.coding import builtin, service
from fugu.coding.env import Coding
from fugu.coding.memory.solutions import SolutionMemory
from fugu.coding.settings import material
from fugu.coding.task import write_tasks
from fugu.coding.tokens import END
from fugu.emulation.env import Rows, is_deferred, spec_of
from fugu.errors import ConfigError, EnvError, EnvTimeout, FuguError
from fugu.spaces import Layout
from fugu.vector.serial import Serial
from tests.coding.fake import FakeSandbox


@pytest.fixture
def sandboxes(monkeypatch):
    """All that were opened; each must be closed at the end."""
    opened: list[FakeSandbox] = []

    def open_sandbox(config):
        opened.append(FakeSandbox())
        return opened[-1]

    monkeypatch.setattr(service, "open_sandbox", open_sandbox)
    yield opened
    assert [one.closed for one in opened] == [1] * len(opened) and not service._open


class Player:
    """One environment, answered with texts."""

    def __init__(self, seed: int = 0, options=None, **settings):
        self.env = Coding(**settings)
        self.layout = Layout(self.env.observation_space)
        self.rows = Rows.zeros(spec_of(self.env))
        self.env.reset(seed, self.rows, options)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.env.close()

    def seen(self) -> str:
        views = self.layout.views(self.rows.obs)
        tokens, length = views["tokens"][0], int(views["length"][0])
        assert (tokens[:length] != 0).all() and (tokens[length:] == 0).all()
        return self.env.tokenizer.decode(tokens)

    def answer(self, text: str):
        ids = [*self.env.tokenizer.encode(text), END]
        action = np.zeros((1, self.env.material.answer_tokens), np.int64)
        action[0, : len(ids)] = ids[: action.shape[1]]
        return (self.env.step(action, self.rows) or {}).get(0)

    @property
    def task(self):
        return self.env._task


WRONG = "def f(x):\n return 12345"


def test_the_prompt_is_the_task_and_its_solution_is_paid(sandboxes):
    with Player(seed=3, level=2) as player:
        task = player.task
        assert player.seen() == task.prompt and task.prompt.count(";") == 1
        assert player.rows.first[0] and player.rows.mask[0]
        info = player.answer(task.solution)
        assert player.rows.reward[0] == 1 and player.rows.terminated[0] and not player.rows.mask[0]
        assert info["status"] == "ok" and info["passed"] == info["total"] == 6 and info["answer"] == task.solution
        log = info["episode_log"]
        assert log["pass_rate"] == log["tests_passed"] == log["status/ok"] == log["executions"] == 1
        assert player.answer(task.solution) is None  # ignored: the next task begins
        assert player.rows.first[0] and player.rows.mask[0] and player.rows.reward[0] == 0 and player.task is not task


def test_it_shows_what_was_asked_what_was_written_and_what_came_of_it(sandboxes):
    with Player(seed=3, level=2, tokenizer="characters", answer_tokens=80) as player:
        task = player.task
        assert player.env.render() == task.prompt
        player.answer("def f(x):\n return '\x1b[2J'")
        shown = player.env.render()
        assert shown.startswith(task.prompt + "\n\ndef f(x):\n return '") and "\x1b" not in shown  # nothing a terminal obeys
        assert shown.splitlines()[-1].startswith("wrong_answer: 0 of 6 tests.")


def test_wrong_answers_are_worth_nothing_or_the_share_of_tests_they_pass(sandboxes):
    for reward, partly in (("all", 0.0), ("fraction", 0.5)):
        with Player(options={"task": 7}, reward=reward) as player:
            assert player.task == builtin.make(7, 1)
            known = {repr(test.args[0]): test.expected for test in player.task.hidden[:3]}
            text = f"def f(x):\n return {known!r}.get(repr(x))"
            with Player(options={"task": 7}, reward=reward, tokenizer="characters", answer_tokens=400) as other:
                info = other.answer(text)
                assert other.rows.reward[0] == partly and info["status"] == "wrong_answer"
            player.answer("def f(x)")
            assert player.rows.reward[0] == 0 and player.rows.terminated[0]


def test_a_program_that_could_not_be_run_has_no_reward(sandboxes):
    with Player(turns=3, tokenizer="characters") as player:
        info = player.answer("broken")
        assert math.isnan(player.rows.reward[0]) and player.rows.terminated[0]
        assert info["episode_log"]["status/internal_error"] == 1
    assert Coding.metadata["unscored_rewards"]


def test_the_same_seed_gives_the_same_tasks_and_another_gives_others(sandboxes):
    seen = []
    for seed in (5, 5, 6):
        with Player(seed=seed, level=(1, 2, 3)) as player:
            tasks = []
            for _ in range(6):
                tasks.append(player.seen())
                player.answer(WRONG)
                player.answer(WRONG)
            seen.append(tasks)
    assert seen[0] == seen[1] != seen[2] and {text.count(";") for text in seen[0]} == {0, 1, 2}


def test_held_out_tasks_are_never_among_the_others(sandboxes):
    prompts = {}
    for held_out in (False, True):
        with Player(level=2, held_out=held_out) as player:
            tasks = [player.env.material.draw(player.env._chance) for _ in range(60)]
            prompts[held_out] = {task.prompt for task in tasks}
            shown = player.env.examples(60, seed=2)[0]
            prompts[held_out, "shown"] = {player.env.tokenizer.decode(one) for one in player.layout.views(shown)["tokens"]}
    assert not prompts[True] & (prompts[False] | prompts[True, "shown"])


def test_a_second_turn_shows_the_answer_and_what_happened_in_visible_tests_alone(sandboxes):
    with Player(seed=1, level=1, turns=2, tokenizer="characters", prompt_tokens=400) as player:
        task = player.task
        assert player.answer(WRONG) is None
        assert not player.rows.terminated[0] and player.rows.mask[0] and not player.rows.first[0] and player.rows.reward[0] == 0
        text = player.seen()
        assert text.startswith(f"{task.prompt}\n{WRONG}\n") and repr(task.visible[0].expected) in text
        hidden = [repr(test.args[0]) for test in task.hidden if test not in task.visible]
        assert not any(f"f({value})" in text for value in hidden)
        info = player.answer(task.solution)
        assert player.rows.reward[0] == 1 and info["episode_log"]["turns"] == 2 and info["total"] == 8
        player.answer("")
        player.answer(WRONG)
        assert player.answer(WRONG)["status"] == "wrong_answer" and player.rows.reward[0] == 0


def test_passing_the_visible_tests_alone_says_nothing_of_the_hidden_ones(sandboxes):
    with Player(seed=1, turns=2, tokenizer="characters", prompt_tokens=900, answer_tokens=400) as player:
        task = player.task
        known = {repr(test.args[0]): test.expected for test in task.visible}
        text = f"def f(x):\n return {known!r}.get(repr(x))"
        assert player.answer(text) is None and player.seen() == f"{task.prompt}\n{text}\n"


def test_token_by_token_the_program_runs_at_its_end(sandboxes):
    with Player(seed=4, mode="token") as player:
        env, task = player.env, player.task
        assert isinstance(env.action_space, gymnasium.spaces.Discrete)
        ids = env.tokenizer.encode(task.solution)
        for k, token in enumerate(ids):
            assert player.seen() == task.prompt + env.tokenizer.decode(ids[:k])
            assert env.step(np.array([token]), player.rows) is None
            assert player.rows.mask[0] and not player.rows.terminated[0] and sandboxes[0].tickets == 0
        info = env.step(np.array([END]), player.rows)[0]
        assert player.rows.reward[0] == 1 and player.rows.terminated[0] and info["answer"] == task.solution
        env.step(np.array([3]), player.rows)
        assert player.rows.first[0] and player.seen() == player.task.prompt
        for _ in range(env.material.answer_tokens):  # or where there is no more room
            assert not player.rows.terminated[0]
            env.step(np.array([ids[0]]), player.rows)
        assert player.rows.terminated[0] and player.rows.reward[0] == 0


@pytest.mark.parametrize("mode", ["completion", "token"])
def test_examples_are_what_the_environment_pays_for(sandboxes, mode):
    with Player(mode=mode, level=(1, 2)) as player:
        chance = random.Random("examples 9")
        tasks = [player.env.material.draw(chance) for _ in range(20)]
        obs, action = player.env.examples(20, seed=9)
        views = player.layout.views(obs)
        assert len(obs) == len(action) and (len(obs) == 20) == (mode == "completion")
        again = player.env.examples(20, seed=9)
        assert (again[0] == obs).all() and (again[1] == action).all()
        if mode == "completion":
            for task, tokens, answer in zip(tasks, views["tokens"], action, strict=True):
                assert player.env.tokenizer.decode(tokens) == task.prompt
                assert player.env.tokenizer.decode(answer) == task.solution and answer.tolist().count(END) == 1
        else:
            last = [player.env.tokenizer.decode(tokens) for tokens in views["tokens"][action == END]]
            assert last == [task.prompt + task.solution for task in tasks]


def test_tasks_may_come_from_a_file(sandboxes, tmp_path):
    path = tmp_path / "tasks.jsonl"
    write_tasks(path, builtin.make_many(40, 2))
    ids = {}
    for held_out in (0, 1):
        with Player(tasks=str(path), held_out=held_out) as player:
            ids[held_out] = {player.env.material.draw(player.env._chance).id for _ in range(300)}
            player.answer(player.task.solution)
            assert player.rows.reward[0] == 1
            wanted = sorted(ids[held_out])[0]
            player.env.reset(None, player.rows, {"task": wanted})
            assert player.task.id == wanted
    assert not ids[0] & ids[1] and len(ids[0] | ids[1]) == 40 and 2 <= len(ids[1]) <= 16
    with pytest.raises(ConfigError, match="there is no task 'x'"):
        Player(tasks=str(path), options={"task": "x"})
    for one in list(service._open.values()):
        service.release(one[1])


def test_a_memory_puts_the_likest_solution_of_another_task_into_the_prompt(sandboxes, tmp_path):
    memory = SolutionMemory()
    known = [task for task in builtin.make_many(60, 1) if task.prompt != "list: sum"]
    for task in known:
        memory.remember(task, task.solution)
    memory.save(tmp_path / "memory")
    with Player(seed=2, level=2, memory=str(tmp_path / "memory")) as player:
        task = player.task
        text = player.seen()
        assert text.endswith(task.prompt) and text == memory.prompt(task)
        shown = next(other for other in known if text.startswith(f"{other.prompt}\n{other.solution}\n"))
        assert set(shown.prompt.split()) & set(task.prompt.replace(";", "").split()) and shown.id != task.id
        player.answer(task.solution)
        assert player.rows.reward[0] == 1
    with Player(seed=2, level=2, memory=str(tmp_path / "memory"), prompt_tokens=8) as player:
        assert player.seen() == player.task.prompt  # there is no room for more


def test_files_that_cannot_be_learned_from_are_refused(sandboxes, tmp_path):
    tasks = builtin.make_many(20, 1)
    for changes, message in (({"hidden": ()}, "has no tests"), ({"solution": ""}, "--env.answer-tokens")):
        write_tasks(tmp_path / "tasks.jsonl", [dataclasses.replace(task, **changes) for task in tasks])
        material.cache_clear()
        with pytest.raises(FuguError, match=message):
            Coding(tasks=str(tmp_path / "tasks.jsonl"))


def test_a_sandbox_that_runs_nothing_any_more_is_an_error_and_not_a_lesson(sandboxes):
    with fugu.vector.make("coding", 60, env_kwargs={"tokenizer": "characters"}) as vec:
        vec.reset(0)
        tokenizer = vec.get_attr("tokenizer", envs=[0])[0]
        action = np.zeros((60, *vec.action_layout.row_shape), np.int64)
        ids = [*tokenizer.encode("broken"), END]
        action[:, : len(ids)] = ids
        _, reward, *_ = vec.step(action)
        assert np.isnan(reward).all()
        vec.step(action)
        with pytest.raises(EnvError, match="the last 100 programs could not be run: .*on purpose"):
            vec.step(action)


def test_impossible_settings_are_said(sandboxes):
    for settings, message in (
        ({"level": 4}, "level=4 must be among 1, 2, 3"),
        ({"lvel": 1}, "Did you mean 'level'"),
        ({"mode": "word"}, "completion or token"),
        ({"turns": 0}, "turns=0"),
        ({"backend": "forks"}, "no backend 'forks'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Coding(**settings)
    with contextlib.closing(Coding(prompt_tokens=1)) as env:
        with pytest.raises(ConfigError, match="--env.prompt-tokens"):
            env.reset(0, Rows.zeros(spec_of(env)))


# --- many of them ---


def completions(vec, texts):
    """Actions for the rows last received: text by agent."""
    tokenizer = vec._runner._shards[0].envs[0].tokenizer
    out = np.zeros((len(texts), *vec.action_layout.row_shape), np.int64)
    for k, text in enumerate(texts):
        ids = [*tokenizer.encode(text), END][: out.shape[1]]
        out[k, : len(ids)] = ids
    return out


def test_all_of_a_process_share_one_sandbox_that_is_closed_with_the_last(sandboxes):
    with fugu.vector.make("coding", 50) as vec:
        assert isinstance(vec._runner, Serial) and is_deferred(Coding) and len(sandboxes) == 1
        vec.reset(0)
        vec.step(completions(vec, [WRONG] * 50))
        assert sandboxes[0].most == 50
        with fugu.vector.make("coding", 2) as _, fugu.vector.make("coding", 2, env_kwargs={"share_process": True}) as _:
            assert len(sandboxes) == 2
        assert sandboxes[0].closed == 0
    assert sandboxes[0].closed == 1


def test_whichever_batch_is_judged_first_comes_first(sandboxes):
    with fugu.vector.make("coding", 6, batch_size=2, order="first_finished") as vec:
        slow = {"x+1": 0.8, "x+2": 0.4}
        sandboxes[0].delay = lambda source: next((s for text, s in slow.items() if text in source), 0.0)
        vec.async_reset(0)
        for k in (1, 2, 3):
            vec.recv()
            vec.send(completions(vec, [f"def f(x):\n x=x+{k}\n return x"] * 2))
        order = []
        for _ in range(3):
            order.append(vec.recv().agents.start // 2)
            vec.park()
        assert order == [2, 1, 0]


def test_environments_with_one_seed_have_one_task(sandboxes):
    with fugu.vector.make("coding", 8, env_kwargs={"level": 3}) as vec:
        obs, _ = vec.reset([3] * 4 + [4] * 4)
        assert len({row.tobytes() for row in obs[:4]}) == len({row.tobytes() for row in obs[4:]}) == 1
        assert obs[0].tobytes() != obs[4].tobytes()


def test_a_program_nobody_waits_for_any_more_is_forgotten(sandboxes):
    with fugu.vector.make("coding", 2, step_timeout=0.2) as vec:
        sandboxes[0].delay = lambda source: 0.4
        vec.reset(0)
        with pytest.raises(EnvTimeout, match="step_timeout"):
            vec.step(completions(vec, [WRONG] * 2))
    with fugu.vector.make("coding", 2) as vec:
        shared = vec._runner._shards[0].envs[0].waiter
        sandboxes[1].delay = lambda source: 0.1
        vec.reset(0)
        vec.send(completions(vec, [WRONG] * 2))
        vec.reset(1)
        sandboxes[1].delay = lambda source: 0.15
        *_, infos = vec.step(completions(vec, [WRONG] * 2))
        assert len(infos) == 2 and not shared._verdicts and not shared._dropped


def test_more_than_the_queue_holds_waits_for_its_turn(sandboxes, monkeypatch):
    monkeypatch.setattr(service, "MOST", 10)
    with fugu.vector.make("coding", 64) as vec:
        sandboxes[0].delay = lambda source: 0.005
        vec.reset(0)
        vec.step(completions(vec, [WRONG] * 64))
        assert sandboxes[0].most <= 10 and sandboxes[0].tickets == 64


@pytest.mark.parametrize("settings", [{}, {"mode": "token"}, {"turns": 2}], ids=["completion", "token", "turns"])
def test_the_checkers_find_nothing(sandboxes, settings):
    report = fugu.check_env("coding", steps=60, env_kwargs=settings)
    assert report.ok, report
    env = gymnasium.make("fugu.envs:fugu/Coding-v0", **settings)
    gymnasium_check(env.unwrapped, skip_render_check=True)
    env.close()


def test_gymnasium_sees_the_same_task(sandboxes):
    env = gymnasium.make("fugu.envs:fugu/Coding-v0", level=2)
    obs, _ = env.reset(seed=3)
    with Player(seed=3, level=2) as player:
        assert env.unwrapped.tokenizer.decode(obs["tokens"]) == player.seen()
        assert obs["length"] == len(player.env.tokenizer.encode(player.seen()))
        action = np.zeros(env.action_space.shape, np.int64)
        ids = [*player.env.tokenizer.encode(player.task.solution), END]
        action[: len(ids)] = ids
    _, reward, terminated, _, info = env.step(action)
    assert reward == 1 and terminated and info["status"] == "ok"
    env.close()
