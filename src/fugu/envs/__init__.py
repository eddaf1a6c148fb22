"""The native environments for people who use nothing else of ours: importing this registers them with Gymnasium.

gymnasium.make("fugu.envs:fugu/CartPole-v0")
gymnasium.make_vec("fugu.envs:fugu/CartPole-v0", num_envs=4096)
"""

from fugu.coding import gym as coding_gym
from fugu.envs import velocity
from fugu.envs.registration import gymnasium_id, register

__all__ = ["gymnasium_id", "register"]

register()
velocity.register()
coding_gym.register()
