// A row of binary digits is shown, then must be repeated: does the policy remember?
//
// For `length` steps the observation shows one digit of a sequence drawn anew in each episode, then for `delay` steps nothing,
// then for `length` steps it only asks; the action taken on the k-th asking row is the answer for digit k, and each right
// answer pays 1 / length. Actions on the other rows do nothing. The last answer ends the episode.
//   observation[0]   -1 for a zero, 1 for a one, 0 where no digit is shown
//   observation[1]   1 where an answer is asked for, else 0
// Optimum: answer what was shown, return 1. All asking rows look the same and the digits are fair coins, so whatever a policy
// does that sees the present observation only, random or not, its mean return is exactly 0.5.
// Logs: score, the share of right answers.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Memory {
  static constexpr const char* name = "memory";
  static constexpr int agents = 1;
  static constexpr int time_limit = 0;
  static constexpr int kMaxLength = 16;

  struct Obs {
    int8_t digit, asks;
  };
  using Action = int64_t;  // the digit

  static constexpr Field observation[] = {signed_bytes("", 2, -1, 1)};
  static constexpr Field action[] = {discrete("", 2)};

  struct Params {
    int32_t length = 3, delay = 2;
  };
  static constexpr Param<Params> params[] = {{"length", &Params::length, 1, kMaxLength}, {"delay", &Params::delay, 0, 1000000}};

  struct State {
    uint16_t digits, answers;  // as bits
    int32_t tick;
  };

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    s.digits = static_cast<uint16_t>(rng.next());
    s.answers = 0;
    s.tick = 0;
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng&, const Action* action, float* reward) {
    const int asked = s.tick - p.length - p.delay;
    ++s.tick;
    reward[0] = 0.0f;
    if (asked < 0) return false;
    s.answers = static_cast<uint16_t>(s.answers | action[0] << asked);
    reward[0] = (s.digits >> asked & 1) == action[0] ? 1.0f / static_cast<float>(p.length) : 0.0f;
    return asked + 1 == p.length;
  }

  FUGU_HD static bool valid(const State& s, const Params& p, bool over) {
    const int last = 2 * p.length + p.delay;
    return between(s.tick, 0, over ? last : last - 1);
  }

  FUGU_HD static void observe(const State& s, const Params& p, int, Obs* row) {
    row->digit = static_cast<int8_t>(s.tick < p.length ? (s.digits >> s.tick & 1) * 2 - 1 : 0);
    row->asks = s.tick >= p.length + p.delay && s.tick < 2 * p.length + p.delay;
  }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params& p, int, float* values) {
    int right = 0;
    for (int i = 0; i < p.length && i < s.tick - p.length - p.delay; ++i) right += ((s.digits ^ s.answers) >> i & 1) == 0;
    values[0] = static_cast<float>(right) / static_cast<float>(p.length);
  }

  // Above the digits (pale while hidden), below the answers.
#ifndef __CUDACC_RTC__
  static constexpr int width = 240, height = 120;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::white);
    const float wide = 220.0f / static_cast<float>(p.length), side = wide - 4 > 40 ? 40 : wide - 4;
    for (int i = 0; i < p.length; ++i) {
      const float x = 10.0f + wide * (static_cast<float>(i) + 0.5f) - side / 2;
      const int digit = s.digits >> i & 1, answer = s.answers >> i & 1;
      canvas.rectangle(x, 10, side, side, s.tick == i ? colors::black : colors::light);
      const Color inner = s.tick == i ? colors::yellow : colors::white;
      if (digit) canvas.rectangle(x + side / 4, 10 + side / 4, side / 2, side / 2, inner);
      const bool asked = s.tick == i + p.length + p.delay, given = s.tick > i + p.length + p.delay;
      canvas.rectangle(x, 66, side, side, given ? (digit == answer ? colors::green : colors::red) : colors::light);
      if (given && answer) canvas.rectangle(x + side / 4, 66 + side / 4, side / 2, side / 2, colors::white);
      if (asked) canvas.rectangle(x, 66 + side + 4, side, 4, colors::black);
    }
  }
#endif
};

}  // namespace fugu
