// Four arms, one pull: does the algorithm find the best arm at all?
//
// Arm a pays 1 with probability payout<a> and else 0; the episode ends with the pull. The observation is always 1.
// Optimum: always the arm with the highest payout (with the defaults arm 2, mean return 0.9). A uniformly random policy gets
// the mean of the payouts (0.475).
// Logs: score, the payout of the arm pulled divided by the highest one, so 1 is the optimum and chance is 0.528.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Bandit {
  static constexpr const char* name = "bandit";
  static constexpr int agents = 1;
  static constexpr int time_limit = 0;
  static constexpr int kArms = 4;

  struct Obs {
    float one;
  };
  using Action = int64_t;  // which arm

  static constexpr Field observation[] = {box("", 1, 0.0, 1.0)};
  static constexpr Field action[] = {discrete("", kArms)};

  struct Params {
    float payout0 = 0.1f, payout1 = 0.3f, payout2 = 0.9f, payout3 = 0.6f;
  };
  static constexpr Param<Params> params[] = {{"payout0", &Params::payout0, 0, 1},
                                             {"payout1", &Params::payout1, 0, 1},
                                             {"payout2", &Params::payout2, 0, 1},
                                             {"payout3", &Params::payout3, 0, 1}};

  struct State {
    int32_t arm;  // the one pulled; -1 before
    float paid;
  };

  FUGU_HD static void reset(State& s, const Params&, Rng&) {
    s.arm = -1;
    s.paid = 0.0f;
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng& rng, const Action* action, float* reward) {
    s.arm = static_cast<int32_t>(action[0]);
    s.paid = rng.uniform() < payout(p, s.arm) ? 1.0f : 0.0f;
    reward[0] = s.paid;
    return true;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool) { return between(s.arm, -1, kArms - 1) && between(s.paid, 0, 1); }

  FUGU_HD static void observe(const State&, const Params&, int, Obs* row) { row->one = 1.0f; }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params& p, int, float* values) {
    const float best = highest(p);
    values[0] = best > 0 && s.arm >= 0 ? payout(p, s.arm) / best : 1.0f;
  }

#ifndef __CUDACC_RTC__
  static constexpr int width = 240, height = 160;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::white);
    for (int arm = 0; arm < kArms; ++arm) {
      const float left = 20.0f + 52.0f * static_cast<float>(arm), tall = 120.0f * payout(p, arm);
      canvas.rectangle(left, 16, 44, 120, colors::light);
      canvas.rectangle(left, 136 - tall, 44, tall, arm == s.arm ? (s.paid > 0 ? colors::green : colors::red) : colors::gray);
      if (arm == s.arm) canvas.disc(left + 22, 147, 6, colors::black);
    }
  }
#endif

 private:
  FUGU_HD static float payout(const Params& p, int arm) {
    return arm < 2 ? (arm == 0 ? p.payout0 : p.payout1) : (arm == 2 ? p.payout2 : p.payout3);
  }
  FUGU_HD static float highest(const Params& p) {
    const float low = p.payout0 > p.payout1 ? p.payout0 : p.payout1, high = p.payout2 > p.payout3 ? p.payout2 : p.payout3;
    return low > high ? low : high;
  }
};

}  // namespace fugu
