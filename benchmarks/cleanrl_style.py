"""PPO on CartPole as one plain loop in one file, the way it is usually written and read: no framework around it.

What ``train.py`` measures trainers against. Gymnasium's ``SyncVectorEnv``, an actor and a critic of two 64-wide layers each, GAE,
shuffled minibatches, Adam, all in plain torch. ``ppo(...)`` is a generator: every ``next`` is one update and gives the steps it took.

    python benchmarks/cleanrl_style.py [--num-envs 64] [--total-steps 200000]
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterator

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.distributions import Categorical


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    def __init__(self, inputs: int, choices: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, choices, 0.01))
        self.critic = nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))


def ppo(
    env_id: str = "CartPole-v1",
    *,
    num_envs: int = 64,
    num_steps: int = 128,
    minibatch: int = 4096,
    epochs: int = 1,
    learning_rate: float = 2.5e-4,
    gamma: float = 0.99,
    lam: float = 0.95,
    clip: float = 0.2,
    entropy_coef: float = 0.01,
    value_coef: float = 0.5,
    max_grad_norm: float = 0.5,
    seed: int = 1,
    returns: deque[float] | None = None,
) -> Iterator[int]:
    """Trains for ever; ``returns`` receives the return of every episode that ends."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    # an episode that ends starts anew within the same step, so that every row is a real one
    envs = SyncVectorEnv([lambda: gymnasium.make(env_id)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), lr=learning_rate, eps=1e-5)

    obs = torch.zeros(num_steps, num_envs, *envs.single_observation_space.shape)
    actions, logprobs, rewards, dones, values = (torch.zeros(num_steps, num_envs) for _ in range(5))
    running = np.zeros(num_envs)
    next_obs = torch.as_tensor(envs.reset(seed=seed)[0])
    next_done = torch.zeros(num_envs)

    while True:
        for step in range(num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                distribution = Categorical(logits=agent.actor(next_obs))
                action = distribution.sample()
                actions[step], logprobs[step] = action, distribution.log_prob(action)
                values[step] = agent.critic(next_obs).squeeze(-1)
            new_obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            done = terminated | truncated
            rewards[step] = torch.as_tensor(reward)
            next_obs, next_done = torch.as_tensor(new_obs), torch.as_tensor(done, dtype=torch.float32)
            running += reward
            if returns is not None:
                returns.extend(running[done].tolist())
            running[done] = 0

        with torch.no_grad():
            next_value = agent.critic(next_obs).squeeze(-1)
            advantages = torch.zeros_like(rewards)
            last = torch.zeros(num_envs)
            for t in reversed(range(num_steps)):
                going_on = 1 - (next_done if t == num_steps - 1 else dones[t + 1])
                following = next_value if t == num_steps - 1 else values[t + 1]
                delta = rewards[t] + gamma * following * going_on - values[t]
                advantages[t] = last = delta + gamma * lam * going_on * last
            targets = advantages + values

        flat_obs = obs.flatten(0, 1)
        flat_actions, flat_logprobs = actions.flatten(), logprobs.flatten()
        flat_advantages, flat_targets = advantages.flatten(), targets.flatten()
        batch = num_steps * num_envs
        for _ in range(epochs):
            order = generator.permutation(batch)
            for start in range(0, batch, minibatch):
                rows = torch.as_tensor(order[start : start + minibatch])
                distribution = Categorical(logits=agent.actor(flat_obs[rows]))
                ratio = (distribution.log_prob(flat_actions[rows]) - flat_logprobs[rows]).exp()
                advantage = flat_advantages[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
                value_loss = 0.5 * (agent.critic(flat_obs[rows]).squeeze(-1) - flat_targets[rows]).square().mean()
                loss = policy_loss + value_coef * value_loss - entropy_coef * distribution.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), max_grad_norm)
                optimizer.step()
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--minibatch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--total-steps", type=int, default=200_000)
    options = vars(parser.parse_args())
    total = options.pop("total_steps")
    returns: deque[float] = deque(maxlen=100)
    steps, started = 0, time.perf_counter()
    for taken in ppo(returns=returns, **options):
        steps += taken
        speed = steps / (time.perf_counter() - started)
        print(f"{steps:9,} steps  {speed:9,.0f} steps/s  return {np.mean(returns) if returns else 0:6.1f}")
        if steps >= total:
            break


if __name__ == "__main__":
    main()
