// Four agents, each with an easy task of its own and a pay that is mostly chance: does the critic see what the actors do not?
//
// Each agent sees a bit and must play it. All are paid the same: the share of agents that were right, plus a bonus that depends
// on a hidden context, one of four, and ranges from -bonus to bonus. The context is in `state`, which is for a critic alone, and
// not in `observation`. The episode ends with the step.
// A critic that sees the state explains the bonus, and what is left of the reward says who was right. To one that does not, the
// bonus is noise, far larger than what is to be learned: it learns too, but slowly. With bonus = 0 both learn alike.
// Optimum: every agent plays its bit, mean return 1. A uniformly random policy has 0.5.
// Logs: score, 1 if the agent was right.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct HiddenBonus {
  static constexpr const char* name = "hidden_bonus";
  static constexpr int agents = 4;
  static constexpr int time_limit = 0;
  static constexpr int kContexts = 4;

  struct Obs {
    float observation;
    float state[kContexts + agents];  // the context as one of four, and everybody's bit
  };
  using Action = int64_t;

  static constexpr Field observation[] = {box("observation", 1, 0.0, 1.0), box("state", kContexts + agents, 0.0, 1.0)};
  static constexpr Field action[] = {discrete("", 2)};

  struct Params {
    float bonus = 10.0f;
  };
  static constexpr Param<Params> params[] = {{"bonus", &Params::bonus, 0.0, 1e6}};

  struct State {
    uint8_t bits, context;
    int8_t right[agents];  // -1 before the step
    uint8_t unused[2];
  };

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    s.bits = static_cast<uint8_t>(rng.below(1u << agents));
    s.context = static_cast<uint8_t>(rng.below(kContexts));
    for (int8_t& right : s.right) right = -1;
    s.unused[0] = s.unused[1] = 0;
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng&, const Action* action, float* reward) {
    int total = 0;
    for (int agent = 0; agent < agents; ++agent) {
      s.right[agent] = action[agent] == (s.bits >> agent & 1);
      total += s.right[agent];
    }
    const float bonus = p.bonus * (static_cast<float>(2 * s.context) / static_cast<float>(kContexts - 1) - 1.0f);
    for (int agent = 0; agent < agents; ++agent) reward[agent] = static_cast<float>(total) / static_cast<float>(agents) + bonus;
    return true;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool) {
    for (const int8_t right : s.right)
      if (!between(right, -1, 1)) return false;
    return s.bits < 1u << agents && s.context < kContexts;
  }

  FUGU_HD static void observe(const State& s, const Params&, int agent, Obs* row) {
    row->observation = static_cast<float>(s.bits >> agent & 1);
    for (int c = 0; c < kContexts; ++c) row->state[c] = c == s.context ? 1.0f : 0.0f;
    for (int a = 0; a < agents; ++a) row->state[kContexts + a] = static_cast<float>(s.bits >> a & 1);
  }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params&, int agent, float* values) {
    values[0] = s.right[agent] > 0 ? 1.0f : 0.0f;
  }

  // A column per agent: its bit above, below whether it was played. The bar at the bottom is the context.
#ifndef __CUDACC_RTC__
  static constexpr int width = 200, height = 200;
  static void render(const State& s, const Params&, Canvas& canvas) {
    canvas.fill(colors::white);
    for (int agent = 0; agent < agents; ++agent) {
      const float left = 14.0f + 45.0f * static_cast<float>(agent);
      canvas.rectangle(left, 20, 36, 36, s.bits >> agent & 1 ? colors::blue : colors::light);
      const int8_t right = s.right[agent];
      canvas.disc(left + 18, 95, 16, right < 0 ? colors::gray : right ? colors::green : colors::red);
      canvas.rectangle(left, 150, 36, 20, agent == s.context ? colors::black : colors::light);
    }
  }
#endif
};

}  // namespace fugu
