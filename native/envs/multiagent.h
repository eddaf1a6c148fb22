// Two agents that must do different things: are agents told apart, and is each paid for its own action?
//
// The observation is the agent's number, 0 or 1. Agent 0 is paid 1 for action 0, agent 1 for action 1, else 0; the episode ends
// with the step.
// Optimum: each agent plays its own number, return 1 for both. A policy that does not look at the observation gets 0.5 on
// average over the agents, as a uniformly random one does.
// Logs: score, the return of the agent.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Multiagent {
  static constexpr const char* name = "multiagent";
  static constexpr int agents = 2;
  static constexpr int time_limit = 0;

  struct Obs {
    float number;
  };
  using Action = int64_t;

  static constexpr Field observation[] = {box("", 1, 0.0, 1.0)};
  static constexpr Field action[] = {discrete("", 2)};

  struct Params {};

  struct State {
    int8_t right[agents];  // -1 before the step
  };

  FUGU_HD static void reset(State& s, const Params&, Rng&) { s.right[0] = s.right[1] = -1; }

  FUGU_HD static bool step(State& s, const Params&, Rng&, const Action* action, float* reward) {
    for (int agent = 0; agent < agents; ++agent) {
      s.right[agent] = action[agent] == agent;
      reward[agent] = static_cast<float>(s.right[agent]);
    }
    return true;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool) { return between(s.right[0], -1, 1) && between(s.right[1], -1, 1); }

  FUGU_HD static void observe(const State&, const Params&, int agent, Obs* row) { row->number = static_cast<float>(agent); }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params&, int agent, float* values) {
    values[0] = s.right[agent] > 0 ? 1.0f : 0.0f;
  }

  // An agent is a disc on one of two fields, pale before it has chosen; its own field has a dark frame.
#ifndef __CUDACC_RTC__
  static constexpr int width = 200, height = 200;
  static void render(const State& s, const Params&, Canvas& canvas) {
    canvas.fill(colors::white);
    for (int agent = 0; agent < agents; ++agent) {
      const float top = 20.0f + 90.0f * static_cast<float>(agent);
      for (int choice = 0; choice < 2; ++choice) {
        const float left = 20.0f + 90.0f * static_cast<float>(choice);
        canvas.rectangle(left, top, 70, 70, choice == agent ? colors::black : colors::light);
        canvas.rectangle(left + 3, top + 3, 64, 64, colors::light);
        const bool here = s.right[agent] >= 0 && (choice == agent) == (s.right[agent] > 0);
        if (here) canvas.disc(left + 35, top + 35, 22, choice == agent ? colors::green : colors::red);
      }
      if (s.right[agent] < 0) canvas.disc(100, top + 35, 22, colors::gray);
    }
  }
#endif
};

}  // namespace fugu
