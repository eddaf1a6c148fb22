"""The loop: it counts, stops, saves, and goes on from a checkpoint as if nothing had happened."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
from gymnasium import spaces as gs
from safetensors import safe_open

from fugu.algorithm.config import PPOConfig, SafeConfig
from fugu.algorithm.ppo import PPO
from fugu.cli.main import main
from fugu.errors import ConfigError, FuguError
from fugu.policy.actor_critic import make_policy
from fugu.policy.config import PolicyConfig
from fugu.policy.transformer import Transformer
from fugu.trainer import checkpoint, loop
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, OptimizerConfig, TrainConfig, with_algorithm
from fugu.trainer.diverged import Diverged
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.optimizer import Optimizer, hidden_matrices, schedule
from fugu.vector.config import VectorConfig

EVERYTHING = PPOConfig(normalize_reward=True, normalize_value=True, priority=0.8, vtrace=True, entropy_final=0.0)
"""everything that carries something from batch to batch"""

BASE = TrainConfig(
    env="cartpole",
    steps=20 * 16 * 8,
    horizon=8,
    minibatch=32,
    epochs=2,
    threads=1,
    vector=VectorConfig(num_envs=16, num_workers=1),
    policy=PolicyConfig(hidden=(16,), normalize_observation=True),
    ppo=EVERYTHING,
    checkpoint=CheckpointConfig(every=5),
)


def train(config: TrainConfig, folder=None, resume=None, updates=10**9):
    """Metrics of each update, and the final weights."""
    trainer = make_trainer(config, folder)
    try:
        trainer.load(resume) if resume else trainer.start()
        seen = []

        def report(metrics):
            seen.append(metrics)
            if len(seen) == updates:
                raise KeyboardInterrupt  # as abrupt as a kill: nothing is saved

        with contextlib.suppress(KeyboardInterrupt):
            trainer.run(report, Interrupt())
        return seen, {name: p.detach().clone() for name, p in trainer.algorithm.policy.state_dict().items()}
    finally:
        trainer.close()


CASES = {
    "feed-forward native": {},
    "lstm native": {"policy": PolicyConfig(hidden=(16,), core="lstm", core_size=8)},
    "mingru native": {"policy": PolicyConfig(hidden=(16,), core="mingru", core_size=8, core_layers=2)},
    "feed-forward serial": {"env": "CartPole-v1", "vector": VectorConfig(num_envs=16, backend="serial")},
    "lstm serial": {
        "env": "CartPole-v1",
        "vector": VectorConfig(num_envs=16, backend="serial"),
        "policy": PolicyConfig(hidden=(16,), core="lstm", core_size=8),
    },
    "process": {"env": "CartPole-v1", "vector": VectorConfig(num_envs=16, backend="process", num_workers=2)},
    "pipelined native": {"vector": VectorConfig(num_envs=16, batch_size=4)},
    "muon": {"optimizer": OptimizerConfig(name="muon")},
    "continuous": {
        "env": "continuous",
        "ppo": dataclasses.replace(EVERYTHING, priority=0.0, vtrace=False),
        "passes": 2,
        "steps": 2 * BASE.steps,
    },
    "safe native": {
        "env": "knapsack_cmdp",
        "algorithm": "safe_ppo",
        "safe": SafeConfig(limit=(5.0,)),
        "ppo": dataclasses.replace(EVERYTHING, vtrace=False),
        "passes": 2,
        "steps": 2 * BASE.steps,
    },
    "safe serial, by adam": {
        "env": "fugu/KnapsackCmdp-v0",
        "algorithm": "safe_ppo",
        "safe": SafeConfig(limit=(5.0,), multiplier="adam"),
        "vector": VectorConfig(num_envs=16, backend="serial"),
        "ppo": dataclasses.replace(EVERYTHING, vtrace=False),
    },
    "multi-agent": {"env": "snake", "vector": VectorConfig(num_envs=2)},
}


RESUMED = {
    name: dataclasses.replace(
        with_algorithm(BASE, case.get("algorithm", "ppo")), **{k: v for k, v in case.items() if k != "algorithm"}
    )
    for name, case in CASES.items()
}
"""gone on with in tests/contract/test_resumed.py"""


def test_seeds_decide_everything():
    config = dataclasses.replace(BASE, steps=6 * 128)
    first, again, other = (train(dataclasses.replace(config, seed=seed))[0] for seed in (1, 1, 2))
    assert first == again and first != other


def test_first_weights_do_not_depend_on_the_threads_that_torch_has_at_the_time():
    config = dataclasses.replace(BASE, policy=PolicyConfig(hidden=(256, 256)))
    weights = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            trainer = make_trainer(config)
            trainer.close()
            weights.append(trainer.algorithm.policy.state_dict())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_training_ends_at_its_steps_or_its_target():
    seen, _ = train(BASE)
    assert seen[-2]["steps"] < BASE.steps <= seen[-1]["steps"]
    seen, _ = train(dataclasses.replace(BASE, target=5.0, steps=10 * BASE.steps))
    assert seen[-1]["steps"] < 5 * BASE.steps and seen[-1]["episodes"] >= 100


def test_steps_count_rows_an_agent_acted_on():
    trainer = make_trainer(BASE)
    try:
        trainer.start()
        metrics = trainer.update(Interrupt())
        assert metrics["steps"] == 16 * 8  # no episode of cartpole is shorter than 8
        for _ in range(10):
            metrics = trainer.update(Interrupt())
        assert metrics["steps"] == 11 * 128 - metrics["episodes"] + int(_waiting(trainer))
    finally:
        trainer.close()


def _waiting(trainer) -> int:
    """Agents whose episode has ended and who have not yet been seen masked."""
    trainer.source.vec.unpark()
    return (~trainer.source.vec.rows.mask).sum()


def test_the_best_checkpoint_is_kept_apart(tmp_path):
    config = dataclasses.replace(BASE, steps=100 * 128, checkpoint=CheckpointConfig(every=10, keep=1))
    train(config, tmp_path)
    best = checkpoint.load(checkpoint.find(tmp_path, "best"))
    assert best.state["best"] is not None
    assert len(checkpoint.steps(tmp_path)) <= 2


def test_a_nan_stops_training_before_it_reaches_the_weights(tmp_path):
    trainer = make_trainer(dataclasses.replace(BASE, policy=PolicyConfig(hidden=(16,))))
    try:
        trainer.start()
        weights = {n: p.clone() for n, p in trainer.algorithm.policy.named_parameters()}
        prepare = trainer.algorithm.prepare

        def spoil(batch, progress):
            batch = prepare(batch, progress)
            reward = batch["reward"].clone()
            reward[0, 0] = float("nan")
            return batch.also(reward=reward, advantage=batch["advantage"] * float("nan"))

        trainer.algorithm.prepare = spoil
        with pytest.raises(Diverged, match="rewards contain NaN") as raised:
            trainer.update(Interrupt())
        raised.value.save(tmp_path / "minibatch.safetensors")
        with safe_open(tmp_path / "minibatch.safetensors", "pt") as saved:
            assert saved.metadata()["message"] == str(raised.value) and saved.get_tensor("reward").isnan().any()
        for name, parameter in trainer.algorithm.policy.named_parameters():
            assert torch.equal(parameter, weights[name])
    finally:
        trainer.close()


class Nobody:
    """No agent is ever there to act."""

    observation_space, action_space, num_agents = gs.Box(-1, 1, (2,)), gs.Discrete(2), 1

    def reset(self, seed, out):
        out.obs[:], out.reward[:] = 0, 0
        for flags in (out.terminated, out.truncated, out.first, out.mask):
            flags[:] = False

    def step(self, action, out):
        self.reset(None, out)

    def close(self):
        pass


def test_training_without_anyone_to_learn_from_comes_to_an_end(monkeypatch):
    monkeypatch.setattr(loop, "MOST_EMPTY", 5)
    vector = VectorConfig(num_envs=16, backend="serial")
    with pytest.raises(FuguError, match="the last 5 updates had nothing to learn from.*fugu check"):
        train(dataclasses.replace(BASE, env=f"{__name__}:Nobody", vector=vector))


def test_what_was_learned_before_a_network_raised_is_saved(tmp_path, monkeypatch):
    act, seen = PPO.act, []

    def fail(algorithm, rows):
        if len(seen) == 3:
            raise ZeroDivisionError
        return act(algorithm, rows)

    monkeypatch.setattr(PPO, "act", fail)
    trainer = make_trainer(BASE, tmp_path)
    try:
        trainer.start()
        with pytest.raises(ZeroDivisionError):
            trainer.run(seen.append, Interrupt())
    finally:
        trainer.close()
    assert checkpoint.load(checkpoint.find(tmp_path)).state["steps"] == seen[-1]["steps"]


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"minibatch": 30}, "try --minibatch 32"),
        ({"minibatch": 24}, "try --minibatch 16"),
        ({"minibatch": 1024}, "try --minibatch 128"),
        ({"horizon": 0}, "horizon=0"),
        ({"steps": -5}, "steps=-5"),
        ({"device": "cuda:9"}, "device='cuda:9'"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"vector": VectorConfig(num_envs=16, seed=3)}, "give --seed 3"),
    ],
)
def test_impossible_sizes_are_refused_with_a_suggestion(changes, says):
    with pytest.raises(ConfigError, match=says):
        make_trainer(dataclasses.replace(BASE, **changes))


@pytest.mark.parametrize("num_envs, horizon, minibatch", [(50, 40, 512), (25, 60, 512), (7, 3, 100), (16, 8, 1), (1, 64, 500)])
def test_a_suggested_minibatch_is_not_refused_again(num_envs, horizon, minibatch):
    sizes = dataclasses.replace(BASE, minibatch=None, horizon=horizon, vector=VectorConfig(num_envs=num_envs))
    with pytest.raises(ConfigError, match="multiple of horizon") as refused:
        dataclasses.replace(sizes, minibatch=minibatch)
    suggested = int(str(refused.value).split("--minibatch ")[1])
    assert dataclasses.replace(sizes, minibatch=suggested).minibatches(num_envs * 3) >= 1


def test_schedules_go_from_one_to_the_final_rate():
    linear = OptimizerConfig(schedule="linear", final_rate=0.1, warmup=0.1)
    assert schedule(linear, 0.05) == pytest.approx(0.5)
    assert schedule(linear, 0.1) == pytest.approx(1.0)
    assert schedule(linear, 0.55) == pytest.approx(0.55)
    assert schedule(linear, 1.0) == pytest.approx(0.1)
    cosine = OptimizerConfig(schedule="cosine")
    assert [round(schedule(cosine, p), 6) for p in (0, 0.5, 1)] == [1, 0.5, 0]
    assert schedule(OptimizerConfig(schedule="constant"), 0.9) == 1


def test_muon_takes_hidden_matrices_and_adam_the_rest():
    trainer = make_trainer(dataclasses.replace(BASE, optimizer=OptimizerConfig(name="muon")))
    trainer.close()
    optimizer: Optimizer = trainer.engine.optimizer
    names = {id(p): n for n, p in trainer.algorithm.policy.named_parameters()}
    muon = [names[id(p)] for group in optimizer.parts["policy"].muon.param_groups for p in group["params"]]
    assert muon == ["net.trunk.layers.0.weight"]
    assert len(optimizer.parts["policy"].adam.parameters) + len(muon) == len(names)


def test_muon_leaves_embeddings_and_heads_alone(tmp_path):
    tokens = gs.MultiDiscrete([5] * 4)
    transformer = Transformer(tokens, tokens, PolicyConfig(width=8, layers=1, attention_heads=2))
    layers = ("into_heads", "out_of_heads", "up", "down")
    assert hidden_matrices(transformer) == {f"blocks.0.{layer}.weight" for layer in layers}
    seen = make_policy(gs.Discrete(100), gs.Discrete(3), PolicyConfig(hidden=(16,)), seed=0)
    assert hidden_matrices(seen) == {"net.trunk.layers.0.weight"}
    path = tmp_path / "net.py"
    assert main(["new", "policy", str(path)]) == 0
    mine = make_policy(gs.Box(-1, 1, (3,)), gs.Discrete(3), PolicyConfig(net=f"{path}:Net"), seed=0)
    assert hidden_matrices(mine) == {"net.layers.0.weight", "net.layers.2.weight"}


@pytest.mark.parametrize("changes", [{"minibatch": 1}, {"vector": VectorConfig(num_envs=1)}])
def test_a_minibatch_of_one_row_that_would_be_normalized_away_is_refused(changes):
    config = dataclasses.replace(BASE, horizon=1, minibatch=None)
    with pytest.raises(ConfigError, match="teaches nothing; try a larger --minibatch"):
        make_trainer(dataclasses.replace(config, **changes))


def test_gradients_are_shortened_and_their_length_is_told():
    net = torch.nn.Linear(3, 1, bias=False)
    optimizer = Optimizer({"policy": net}, OptimizerConfig(max_grad_norm=0.5))
    norm = optimizer.step(net(torch.tensor([3.0, 4.0, 0.0])).sum())
    assert norm == 5
    torch.testing.assert_close(net.weight.grad.norm(), torch.tensor(0.5), rtol=1e-4, atol=0)


def test_a_second_module_does_not_change_how_the_first_learns():
    weights = []
    for others in ((), ("critic",)):
        torch.manual_seed(0)
        modules = {name: torch.nn.Linear(3, 1) for name in ("policy", *others)}
        optimizer = Optimizer(modules, OptimizerConfig(max_grad_norm=0.5))
        for _ in range(3):
            optimizer.step(sum(100 * net(torch.ones(3)).square().sum() for net in modules.values()))
        weights.append(modules["policy"].weight.detach().clone())
    assert torch.equal(*weights)
    again = Optimizer(modules, OptimizerConfig())
    again.load_state(optimizer.state())
    assert set(again.state()) == {f"{part}adam.{name}" for part in ("", "critic/") for name in ("steps", "mean", "square")}
    assert all(torch.equal(a, b) for a, b in zip(again.state().values(), optimizer.state().values(), strict=True))
