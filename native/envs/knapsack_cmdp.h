// Which risks are worth their cost? A constrained task with a known optimum.
//
// 20 steps. Each shows one of two offers, A or B by the toss of a coin. To take it pays 2 (A) or 0.5 (B) and costs 1 either way;
// to leave it pays and costs nothing. The episode terminates after the last step.
// Optimum with at most 10 of cost per episode on average: take A, leave B; return 20, cost 10. Without a limit: take all, return 25,
// cost 20. Taking every second offer keeps the limit as well, but returns 12.5: only the return at the limit tells a real method from
// mere caution.
// Logs: score, the return as a share of what always taking A and leaving B gets on average.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct KnapsackCmdp {
  static constexpr const char* name = "knapsack_cmdp";
  static constexpr int agents = 1;
  static constexpr int time_limit = 0;
  static constexpr int kMaxSteps = 64;

  struct Obs {
    float a, b;  // 1 for the offer there is
  };
  using Action = int64_t;  // 0: leave it, 1: take it

  static constexpr Field observation[] = {box("", 2, 0.0, 1.0)};
  static constexpr Field action[] = {discrete("", 2)};
  static constexpr const char* costs[] = {"cost"};

  struct Params {
    int32_t steps = 20;
    float pay_a = 2.0f, pay_b = 0.5f;
  };
  static constexpr Param<Params> params[] = {
      {"steps", &Params::steps, 1, kMaxSteps}, {"pay_a", &Params::pay_a, 0, 100}, {"pay_b", &Params::pay_b, 0, 100}};

  struct State {
    uint64_t was_a, taken;  // one bit per step so far, for the picture
    int32_t t, offer;       // offer: 0 is A, 1 is B
    double total;
  };

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    s.was_a = s.taken = 0;
    s.t = 0;
    s.total = 0.0;
    s.offer = static_cast<int32_t>(rng.below(2));
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng& rng, const Action* action, float* reward, float* cost) {
    const bool take = action[0] == 1;
    reward[0] = take ? (s.offer == 0 ? p.pay_a : p.pay_b) : 0.0f;
    cost[0] = take ? 1.0f : 0.0f;
    s.total += static_cast<double>(reward[0]);
    s.was_a |= static_cast<uint64_t>(s.offer == 0) << s.t;
    s.taken |= static_cast<uint64_t>(take) << s.t;
    s.offer = static_cast<int32_t>(rng.below(2));
    return ++s.t >= p.steps;
  }

  FUGU_HD static bool valid(const State& s, const Params& p, bool over) {
    return between(s.t, 0, over ? p.steps : p.steps - 1) && between(s.offer, 0, 1) && between(s.total, 0, kMaxSteps * 100.0);
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) {
    row->a = s.offer == 0 ? 1.0f : 0.0f;
    row->b = s.offer == 1 ? 1.0f : 0.0f;
  }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params& p, int, float* values) {
    const float best = 0.5f * static_cast<float>(p.steps) * p.pay_a;
    values[0] = best > 0 ? static_cast<float>(s.total) / best : 1.0f;
  }

  // The offers so far, large for A and small for B, green where taken; below, what the episode has cost, with a mark at half.
#ifndef __CUDACC_RTC__
  static constexpr int width = 240, height = 120;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::white);
    const float wide = 220.0f / static_cast<float>(p.steps);
    int spent = 0;
    for (int t = 0; t <= s.t && t < p.steps; ++t) {
      const bool now = t == s.t, a = now ? s.offer == 0 : ((s.was_a >> t) & 1) != 0, taken = !now && ((s.taken >> t) & 1) != 0;
      const float tall = a ? 60.0f : 15.0f;
      canvas.rectangle(10 + wide * static_cast<float>(t), 75 - tall, wide * 0.8f, tall,
                       now ? colors::black : taken ? colors::green : colors::light);
      spent += taken;
    }
    canvas.rectangle(10, 90, 220, 12, colors::light);
    canvas.rectangle(10, 90, wide * static_cast<float>(spent), 12, 2 * spent > p.steps ? colors::red : colors::gray);
    canvas.rectangle(119, 86, 2, 20, colors::black);
  }
#endif
};

}  // namespace fugu
