"""d3rlpy's side of benchmarks/offline.py, run with the Python of an environment that has it; it knows nothing of fugu.

offline_peer.py learn|time ALGORITHM EPISODES.npz UPDATES SEED prints one line of JSON: the mean return of 20 episodes and CPU seconds,
or CPU milliseconds per update.
"""

from __future__ import annotations

import json
import logging
import sys
import time

import d3rlpy
import gymnasium
import numpy as np
import structlog
import torch

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def main() -> None:
    what, name, path, updates, seed = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    dataset = episodes(path)
    learner = made(name).create(device="cpu:0")
    learner.build_with_dataset(dataset)
    if name == "dt":
        draw = lambda: dataset.sample_trajectory_batch(64, length=20)  # noqa: E731
    else:
        draw = lambda: dataset.sample_transition_batch(256)  # noqa: E731
    warm = 3 if what == "time" else 0
    for _ in range(warm):
        learner.update(draw())
    start = time.process_time()
    for _ in range(updates):
        learner.update(draw())
    spent = time.process_time() - start
    if what == "time":
        print(json.dumps({"ms": spent / updates * 1000}))
    else:
        print(json.dumps({"achieved": play(learner), "cpu_seconds": spent}))


def made(name: str):
    """Return the config: that of fugu's preset, as far as both have the same settings; the rest is d3rlpy's default."""
    obs = np.load(sys.argv[3])["obs"].astype(np.float32)
    scaled = {
        "observation_scaler": d3rlpy.preprocessing.StandardObservationScaler(mean=obs.mean(0), std=obs.std(0)),
        "action_scaler": d3rlpy.preprocessing.MinMaxActionScaler(minimum=-2.0, maximum=2.0),
    }
    if name == "dt":
        width = d3rlpy.models.encoders.VectorEncoderFactory([128], exclude_last_activation=True)  # as in its reproductions
        return d3rlpy.algos.DecisionTransformerConfig(
            batch_size=64, context_size=20, max_timestep=1000, encoder_factory=width, **scaled
        )
    rates = {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4, "batch_size": 256, **scaled}
    if name == "iql":
        return d3rlpy.algos.IQLConfig(expectile=0.7, weight_temp=3.0, reward_scaler=scaler(), **rates)
    return d3rlpy.algos.TD3PlusBCConfig(alpha=2.5, reward_scaler=scaler(), **rates)


def scaler():
    """Return fugu's factor on rewards."""
    found = np.load(sys.argv[3])
    ends = np.cumsum(found["lengths"])
    returns = np.array([part.sum() for part in np.split(found["reward"], ends[:-1])])
    return d3rlpy.preprocessing.MultiplyRewardScaler(float(found["lengths"].mean() / (returns.max() - returns.min())))


def episodes(path: str):
    found = np.load(path)
    terminals, cuts = np.zeros(len(found["reward"])), np.zeros(len(found["reward"]))
    last = np.cumsum(found["lengths"]) - 1
    terminals[last] = found["terminated"][last]
    cuts[last] = ~found["terminated"][last]
    return d3rlpy.dataset.MDPDataset(
        found["obs"].astype(np.float32), found["action"].reshape(len(cuts), -1), found["reward"][:, None], terminals, cuts
    )


def play(learner) -> float:
    env, returns = gymnasium.make("Pendulum-v1"), []
    for number in range(20):
        obs, _ = env.reset(seed=1000 + number)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(learner.predict(obs[None])[0])
            total, over = total + reward, terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


if __name__ == "__main__":
    main()
