// The best policy is a coin that shows action 0 three times in four: does the algorithm keep a policy random where it should
// be?
//
// The observation is always 1. After `horizon` steps the episode ends and pays 1 - |f - p| / max(p, 1 - p), where f is the
// share of steps with action 0 and p the setting `probability` (0.75); all other rewards are 0. So f = p pays 1.
// Optimum: a policy without memory does best near P(action 0) = p; with the defaults its mean return is 1 - E|Binomial(32,
// 0.75) / 32 - 0.75| / 0.75 = 0.919. (One that counts steps can reach 1.) The deterministic ones get 2/3 (always 0) and 0
// (always 1), and a fair coin gets 0.667.
// Logs: score, the return.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Stochastic {
  static constexpr const char* name = "stochastic";
  static constexpr int agents = 1;
  static constexpr int time_limit = 0;

  struct Obs {
    float one;
  };
  using Action = int64_t;

  static constexpr Field observation[] = {box("", 1, 0.0, 1.0)};
  static constexpr Field action[] = {discrete("", 2)};

  struct Params {
    float probability = 0.75f;
    int32_t horizon = 32;
  };
  static constexpr Param<Params> params[] = {{"probability", &Params::probability, 0, 1},
                                             {"horizon", &Params::horizon, 1, 1000000}};

  struct State {
    int32_t tick, zeros;
  };

  FUGU_HD static void reset(State& s, const Params&, Rng&) { s.tick = s.zeros = 0; }

  FUGU_HD static bool step(State& s, const Params& p, Rng&, const Action* action, float* reward) {
    s.zeros += action[0] == 0;
    ++s.tick;
    const bool last = s.tick >= p.horizon;
    reward[0] = last ? closeness(s, p) : 0.0f;
    return last;
  }

  FUGU_HD static bool valid(const State& s, const Params& p, bool over) {
    return between(s.tick, 0, over ? p.horizon : p.horizon - 1) && between(s.zeros, 0, s.tick);
  }

  FUGU_HD static void observe(const State&, const Params&, int, Obs* row) { row->one = 1.0f; }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params& p, int, float* values) {
    values[0] = s.tick >= p.horizon ? closeness(s, p) : 0.0f;
  }

  // How far the episode is, the share of zeros so far, and where it should be.
#ifndef __CUDACC_RTC__
  static constexpr int width = 240, height = 100;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::white);
    const float share = static_cast<float>(s.zeros) / static_cast<float>(s.tick > 0 ? s.tick : 1);
    canvas.rectangle(20, 16, 200, 8, colors::light);
    canvas.rectangle(20, 16, 200.0f * static_cast<float>(s.tick) / static_cast<float>(p.horizon), 8, colors::gray);
    canvas.rectangle(20, 44, 200, 32, colors::light);
    canvas.rectangle(20, 44, 200 * share, 32, colors::teal);
    canvas.rectangle(20 + 200 * p.probability - 1.5f, 36, 3, 48, colors::red);
  }
#endif

 private:
  FUGU_HD static float closeness(const State& s, const Params& p) {
    const float off = static_cast<float>(s.zeros) / static_cast<float>(s.tick) - p.probability;
    return 1.0f - (off < 0 ? -off : off) / (p.probability > 0.5f ? p.probability : 1.0f - p.probability);
  }
};

}  // namespace fugu
