"""The coding environment over the real sandbox: programs are run, hacks are worth nothing, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import os
import signal

import numpy as np
import psutil
import pytest

import fugu
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.sandbox import Sandbox
from fugu.coding.tokens import END
from fugu.errors import SandboxError
from fugu.policy.config import PolicyConfig
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, ImitationConfig, with_algorithm
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(scope="module", autouse=True)
def isolation():
    try:
        Sandbox(SandboxConfig(workers=1)).close()
    except SandboxError as error:
        pytest.skip(f"the sandbox does not reach its level here: {error}")


CHARACTERS = {"tokenizer": "characters", "answer_tokens": 200, "workers": 1}


def answers(vec, texts):
    tokenizer = vec._runner._shards[0].envs[0].tokenizer
    out = np.zeros((len(texts), *vec.action_layout.row_shape), np.int64)
    for k, text in enumerate(texts):
        ids = [*tokenizer.encode(text), END]
        out[k, : len(ids)] = ids
    return out


def tasks_of(vec):
    return [env._task for shard in vec._runner._shards for env in shard.envs]


HACKS = {
    "ends early": "import os\nos._exit(0)",
    "ends well": "raise SystemExit(0)",
    "equals everything": "class A(int):\n def __eq__(s,o): return True\ndef f(x): return A(3)",
    "prints": "def f(x):\n print('ok passed 6 6')",
    "writes elsewhere": "import os\nfor d in range(3,30):\n try: os.write(d,b'[1]')\n except OSError: pass\ndef f(x): return 0",
    "reads the tests": "import gc\ndef f(x):\n for o in gc.get_objects():\n  if hasattr(o,'hidden'): return 1",
    "never ends": "while 1: pass",
    "is no program": "def f(x",
}


def test_solutions_are_paid_and_hacks_are_not():
    with fugu.vector.make("coding", len(HACKS) + 2, env_kwargs={"level": 3, **CHARACTERS}) as vec:
        vec.reset(0)
        solutions = [task.solution for task in tasks_of(vec)]
        _, reward, terminated, _, infos = vec.step(answers(vec, [*solutions[:2], *HACKS.values()]))
    assert reward.tolist() == [1, 1] + [0] * len(HACKS) and terminated.all()
    status = {name: infos[k + 2]["status"] for k, name in enumerate(HACKS)}
    assert status["never ends"] == "time_limit" and status["is no program"] == "runtime_error"
    assert infos[9]["detail"] and "SyntaxError" in infos[9]["detail"]


def test_quick_batches_are_not_held_up_by_a_program_that_runs_into_its_limit():
    with fugu.vector.make("coding", 8, batch_size=2, order="first_finished", env_kwargs=CHARACTERS) as vec:
        vec.async_reset(0)
        served = []
        for turn in range(14):
            rows = vec.recv()
            served.append(rows.agents.start // 2)
            vec.send(answers(vec, ["while 1: pass" if turn == 0 else "def f(x): return 0", "def f(x): return 0"]))
        assert served[0] == 0 and 0 not in served[1:] and len(set(served)) == 4


def test_a_worker_of_the_sandbox_that_dies_costs_nobody_a_reward():
    with fugu.vector.make("coding", 40, env_kwargs=CHARACTERS) as vec:
        vec.reset(1)
        solutions = [task.solution for task in tasks_of(vec)]
        vec.send(answers(vec, solutions))
        children = psutil.Process().children(recursive=True)
        assert children
        os.kill(children[0].pid, signal.SIGKILL)
        assert vec.recv().reward.tolist() == [1] * 40


def test_workers_have_sandboxes_of_their_own():
    with fugu.vector.make("coding", 6, num_workers=2, batch_size=3, env_kwargs={"workers": 1}) as vec:
        vec.async_reset(0)
        for _ in range(4):
            rows = vec.recv()
            vec.send(np.ones((3, *vec.action_layout.row_shape), np.int64))
        assert rows.terminated.all() and (rows.reward == 0).all()


SMALL = dataclasses.replace(
    preset("coding"),
    env_kwargs={"level": 1, "share_process": True, "workers": 1},
    steps=32 * 4,
    minibatch=16,
    threads=1,
    vector=VectorConfig(num_envs=32, batch_size=8),
    policy=PolicyConfig(net="transformer", width=32, layers=1),
    imitation=ImitationConfig(examples=32, example_steps=40, example_rate=1e-2),
    checkpoint=CheckpointConfig(every=2),
)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "token_ppo"])
def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_been_interrupted(algorithm, tmp_path):
    config, seen, again = with_algorithm(SMALL, algorithm), [], []
    for folder, rows, resumed in (("a", seen, False), ("b", again, True)):
        trainer = make_trainer(config.from_checkpoint() if resumed else config, tmp_path / folder)
        try:
            if resumed:
                trainer.load(sorted((tmp_path / "a").glob("step_*"))[0])
            else:
                trainer.start()
            trainer.run(rows.append, Interrupt())
        finally:
            trainer.close()
    assert 0 < len(again) < len(seen) and again == seen[-len(again) :]
    assert seen[0]["episode/return"] > 0 and seen[0]["env/pass_rate"] == seen[0]["episode/return"]
    assert seen[0]["env/executions"] == 1 and 0 < seen[0]["env/status/ok"] < 1


@pytest.mark.slow
def test_a_run_that_had_come_to_its_end_goes_on_as_one_that_was_longer_from_the_start(tmp_path):
    seen, parts = [], []
    constant = dataclasses.replace(SMALL.optimizer, schedule="constant")  # any other schedule knows where a run ends
    steps = SMALL.steps // 2 // SMALL.vector.num_envs * SMALL.vector.num_envs
    for folder, rows, until in (("a", seen, SMALL.steps), ("b", parts, steps), ("b", parts, SMALL.steps)):
        config = dataclasses.replace(SMALL, steps=until, optimizer=constant, checkpoint=CheckpointConfig(every=1000))
        trainer = make_trainer(config, tmp_path / folder)
        try:
            saved = sorted((tmp_path / folder).glob("step_*"))
            trainer.load(saved[-1]) if saved else trainer.start()
            trainer.run(rows.append, Interrupt())
        finally:
            trainer.close()
    assert parts == seen and len(seen) > 1


@pytest.mark.slow
def test_a_thousand_environments_at_once():
    with fugu.vector.make("coding", 1024, env_kwargs={"level": 2, "share_process": True, "cache": 0}) as vec:
        vec.reset(0)
        texts = [task.solution if k % 4 else "def f(x):\n x=x+1\n return x" for k, task in enumerate(tasks_of(vec))]
        _, reward, terminated, _, _ = vec.step(answers(vec, texts))
        assert terminated.all() and reward[np.arange(1024) % 4 > 0].all() and reward.mean() < 0.8
        assert len(psutil.Process().children(recursive=True)) < 200
