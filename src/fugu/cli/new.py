"""``fugu new env``: write a small environment to start from, which passes ``fugu check``."""

from __future__ import annotations

import importlib.util
import shlex
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.text import Text

from fugu.cli.options import console, parse
from fugu.cli.starter import check_class, check_file, class_name, show_next, write_new
from fugu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a small environment to start from: a Gymnasium class, with --multi a PettingZoo one, with --native a C++ header."""

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATH")]
    """File to write; an existing one is never touched"""
    name: str = ""
    """Name of the class or struct; empty: from the file name, my_env.py -> MyEnv"""
    multi: bool = False
    """Write one with several agents: a PettingZoo ParallelEnv"""
    native: bool = False
    """Write a C++ header, for millions of steps per second"""


def main(argv: list[str]) -> int:
    options = parse(Options, "new env", argv)
    if options.native and options.multi:
        raise ConfigError("--native and --multi do not go together; the header says how to have several agents")
    if options.native:
        path = check_file(options.path, ".h", "my_env.h", "C++ header")
    else:
        path = check_file(options.path, ".py", "my_env.py", "Python file")
    name = options.name or class_name(path)
    check_class(name, "MyEnv")
    if options.native and name in TAKEN:
        raise ConfigError(f"the struct cannot be called {name!r}, as a part of it is; choose another with --name {name}Env")
    text = NATIVE if options.native else MULTI if options.multi else SINGLE
    write_new(path, text.replace("MyEnv", name).replace("my_env", path.stem))
    env = shlex.quote(str(path) if options.native else f"{path}:{name}")
    speed = "bench vector" if options.native else "autotune"
    commands = [(f"fugu check {env}", "is it sound?"), (f"fugu {speed} {env}", "how is it stepped fastest?")]
    commands.append((f"fugu train {env}", "what can be learned in it?"))
    show_next(f"{path} with the {'struct' if options.native else 'class'} {name}", commands)
    if options.multi and importlib.util.find_spec("pettingzoo") is None:
        console().print(Text('it needs PettingZoo: pip install "fugu-rl[pettingzoo]"', style="yellow"))
    return 0


SINGLE = '''"""An environment to start from: walk along a corridor to the goal. Replace what it shows, does and rewards."""

import gymnasium
import numpy as np
from gymnasium import spaces


class MyEnv(gymnasium.Env):
    """Action 0 goes left, 1 goes right; reaching the goal gives 1 and ends the episode."""

    def __init__(self, size: int = 8):
        self.size = size
        # what the agent sees: arrays of exactly this shape, dtype and range; Dict and Tuple spaces work as well
        self.observation_space = spaces.Box(0.0, 1.0, shape=(2,), dtype=np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random; draw all randomness from it
        self.position = int(self.np_random.integers(self.size))
        self.goal = int(self.np_random.integers(self.size))
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.position = min(max(self.position + (1 if action == 1 else -1), 0), self.size - 1)
        self.steps += 1
        terminated = self.position == self.goal  # the task is over: nothing comes after
        truncated = self.steps >= 10 * self.size  # cut off: it could have gone on
        reward = 1.0 if terminated else -0.01
        return self.observe(), reward, terminated, truncated, {}

    def observe(self):
        return np.array([self.position, self.goal], np.float32) / (self.size - 1)
'''

MULTI = '''"""Several agents to start from: each walks along a corridor to a goal of its own. Replace what they see, do and get."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class MyEnv(ParallelEnv):
    """Action 0 goes left, 1 goes right; an agent that reaches its goal gets 1 and leaves."""

    metadata = {"name": "MyEnv"}

    def __init__(self, size: int = 8, agents: int = 3):
        self.size = size
        self.possible_agents = [f"walker_{i}" for i in range(agents)]  # everyone who can ever be there, in a fixed order
        self.agents = []
        # what an agent sees: arrays of exactly this shape, dtype and range; Dict and Tuple spaces work as well
        self._observation_space = spaces.Box(0.0, 1.0, shape=(2,), dtype=np.float32)
        self._action_space = spaces.Discrete(2)
        self.random = np.random.default_rng()

    def observation_space(self, agent):
        return self._observation_space

    def action_space(self, agent):
        return self._action_space

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)  # draw all randomness from it
        self.agents = list(self.possible_agents)
        self.position = {agent: int(self.random.integers(self.size)) for agent in self.agents}
        self.goal = {agent: int(self.random.integers(self.size)) for agent in self.agents}
        self.steps = 0
        return self.observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.steps += 1
        for agent, action in actions.items():
            self.position[agent] = min(max(self.position[agent] + (1 if action == 1 else -1), 0), self.size - 1)
        observations, infos = self.observe(), {agent: {} for agent in self.agents}
        terminated = {agent: self.position[agent] == self.goal[agent] for agent in self.agents}  # its task is over
        truncated = {agent: self.steps >= 10 * self.size for agent in self.agents}  # cut off: it could have gone on
        rewards = {agent: 1.0 if terminated[agent] else -0.01 for agent in self.agents}
        self.agents = [agent for agent in self.agents if not terminated[agent] and not truncated[agent]]
        return observations, rewards, terminated, truncated, infos

    def observe(self):
        places = {agent: [self.position[agent], self.goal[agent]] for agent in self.agents}
        return {agent: np.array(place, np.float32) / (self.size - 1) for agent, place in places.items()}
'''

TAKEN = ("State", "Params", "Action", "Obs")
"""names of the structs and types inside that of a native environment; C++ takes the name of a struct within it for the struct"""

NATIVE = """// An environment to start from: walk along a corridor to the goal. Replace what it shows, does and rewards.
// Everything is plain data and static functions; the engine steps thousands of these, resets them, cuts them off at the time
// limit, checks the actions and keeps the statistics. The whole contract is at the top of fugu/env.h.
#pragma once

#include <fugu/env.h>

#ifndef __CUDACC_RTC__  // not for the GPU: pictures
#include <fugu/canvas.h>
#endif

struct MyEnv {
  static constexpr const char* name = "my_env";
  static constexpr int agents = 1;        // with more, actions, rewards and observe() have one entry for each
  static constexpr int time_limit = 100;  // steps after which an episode is truncated; 0: never

  // What an agent sees and does: a struct each, and the Gymnasium space it is. box("", 2) is a Box of two floats, discrete("", 2)
  // is Discrete(2). Several fields, named and in alphabetical order, are a Dict.
  struct Obs {
    float position, goal;
  };
  using Action = int64_t;  // 0 goes left, 1 goes right
  static constexpr fugu::Field observation[] = {fugu::box("", 2, 0.0, 1.0)};
  static constexpr fugu::Field action[] = {fugu::discrete("", 2)};

  // Settings, given as --env.size 16 or env_kwargs={"size": 16}: float or int32_t.
  struct Params {
    int32_t size = 8;
    float step_reward = -0.01f;
  };
  static constexpr fugu::Param<Params> params[] = {{"size", &Params::size, 1, 1000}, {"step_reward", &Params::step_reward}};

  // All that one world remembers: no pointers, no std::vector.
  struct State {
    int32_t position, goal;
  };

  // Starts an episode. All chance comes from rng: the same seed then gives the same episodes on any number of threads.
  FUGU_HD static void reset(State& s, const Params& p, fugu::Rng& rng) {
    s.position = static_cast<int32_t>(rng.below(static_cast<uint32_t>(p.size)));
    s.goal = static_cast<int32_t>(rng.below(static_cast<uint32_t>(p.size)));
  }

  // One step: writes a reward for each agent; true if the task is over. Actions are inside their space. If it is arithmetic without
  // chance, see "lanes" in fugu/env.h: several times as fast.
  FUGU_HD static bool step(State& s, const Params& p, fugu::Rng&, const Action* action, float* reward) {
    const int32_t next = s.position + (action[0] == 1 ? 1 : -1);
    s.position = next < 0 ? 0 : next >= p.size ? p.size - 1 : next;
    const bool there = s.position == s.goal;
    reward[0] = there ? 1.0f : p.step_reward;
    return there;
  }

  // Whether a state from a checkpoint, whose bytes may be any, can be gone on from: whatever the functions here rely on. `over`: the
  // episode has ended. Without this, episodes begin anew at every checkpoint. See "Saved states" in fugu/env.h.
  FUGU_HD static bool valid(const State& s, const Params& p, bool /*over*/) {
    return fugu::between(s.position, 0, p.size - 1) && fugu::between(s.goal, 0, p.size - 1);
  }

  // What the agent sees of the state.
  FUGU_HD static void observe(const State& s, const Params& p, int /*agent*/, Obs* row) {
    const float scale = 1.0f / static_cast<float>(p.size > 1 ? p.size - 1 : 1);
    *row = {static_cast<float>(s.position) * scale, static_cast<float>(s.goal) * scale};
  }

#ifndef __CUDACC_RTC__
  // A picture of it; leave these three out if you need none.
  static constexpr int width = 320, height = 80;
  static void render(const State& s, const Params& p, fugu::Canvas& canvas) {
    const float cell = static_cast<float>(width) / static_cast<float>(p.size);
    canvas.fill(fugu::colors::white);
    canvas.rectangle(static_cast<float>(s.goal) * cell, 20, cell, 40, fugu::colors::green);
    canvas.disc((static_cast<float>(s.position) + 0.5f) * cell, 40, 0.3f * cell, fugu::colors::blue);
  }
#endif
};

FUGU_ENVIRONMENT(MyEnv)
"""
