"""An environment in plain torch, all worlds at once, for CPU and GPU: python examples/tensor_env.py [--steps 200000]"""

import argparse

import gymnasium as gym
import numpy as np
import torch

import fugu


class CartPole:
    """Gymnasium's CartPole-v1. No ``if`` on values: torch.where, so that a GPU computes all worlds in one go."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    time_limit = 500

    def reset(self, n, uniform):
        return {"body": 0.1 * uniform(4) - 0.05}  # [n, 4]: position, its speed, angle, its speed

    def step(self, state, action):
        x, x_dot, theta, theta_dot = state["body"].unbind(-1)
        force = torch.where(action == 1, 10.0, -10.0)
        sine, cosine = theta.sin(), theta.cos()
        push = (force + 0.05 * theta_dot * theta_dot * sine) / 1.1
        theta_acc = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1))
        x_acc = push - 0.05 * theta_acc * cosine / 1.1
        body = state["body"] + 0.02 * torch.stack([x_dot, x_acc, theta_dot, theta_acc], -1)
        fallen = (body[:, 0].abs() > 2.4) | (body[:, 2].abs() > 0.20943951)
        return {"body": body}, torch.ones_like(x), fallen

    def observe(self, state):
        return state["body"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()

    name = f"{__file__}:CartPole"
    vec = fugu.vector.make(name, 1024, device="cuda" if torch.cuda.is_available() else "cpu")
    rows = vec.rows()
    vec.reset(0, rows)
    for _ in range(100):
        vec.step(torch.randint(2, (1024,), device=vec.device), rows)
    print(f"{vec.drain_log().mean_length:.1f} steps without learning")

    run = fugu.train(name, steps=arguments.steps, runs=arguments.runs)
    print(run.evaluate(episodes=10))


if __name__ == "__main__":
    main()
