// A lock of five binary digits: does the algorithm explore until it meets a rare reward, and then keep to it?
//
// Each of the five steps types one digit (the action). The observation is what has been typed so far: per place 1 for a one, -1
// for a zero, 0 for not yet typed. The last step pays 1 if all five digits are those of the password, else 0, and ends the
// episode. The password is the same in every episode: bit i of the setting `password` is digit i (22 is 0, 1, 1, 0, 1).
// Optimum: type the password, return 1. A uniformly random policy is paid in one episode of 32.
// Logs: score, 1 if the lock opened, else 0.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Password {
  static constexpr const char* name = "password";
  static constexpr int agents = 1;
  static constexpr int time_limit = 0;
  static constexpr int kLength = 5;

  struct Obs {
    int8_t typed[kLength];
  };
  using Action = int64_t;  // the digit

  static constexpr Field observation[] = {signed_bytes("", kLength, -1, 1)};
  static constexpr Field action[] = {discrete("", 2)};

  struct Params {
    int32_t password = 22;
  };
  static constexpr Param<Params> params[] = {{"password", &Params::password, 0, (1 << kLength) - 1}};

  struct State {
    int32_t typed, count;  // digits as bits
  };

  FUGU_HD static void reset(State& s, const Params&, Rng&) { s.typed = s.count = 0; }

  FUGU_HD static bool step(State& s, const Params& p, Rng&, const Action* action, float* reward) {
    s.typed |= static_cast<int32_t>(action[0]) << s.count;
    ++s.count;
    reward[0] = open(s, p) ? 1.0f : 0.0f;
    return s.count == kLength;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool over) {
    return between(s.count, 0, over ? kLength : kLength - 1) && between(s.typed, 0, (1 << s.count) - 1);
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) {
    for (int i = 0; i < kLength; ++i) row->typed[i] = static_cast<int8_t>(i < s.count ? (s.typed >> i & 1) * 2 - 1 : 0);
  }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params& p, int, float* values) { values[0] = open(s, p) ? 1.0f : 0.0f; }

#ifndef __CUDACC_RTC__
  static constexpr int width = 240, height = 80;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::white);
    for (int i = 0; i < kLength; ++i) {
      const float x = 40.0f + 40.0f * static_cast<float>(i);
      const bool right = (s.typed >> i & 1) == (p.password >> i & 1);
      canvas.disc(x, 40, 18, i >= s.count ? colors::light : right ? colors::green : colors::red);
      if (i >= s.count) continue;
      if (s.typed >> i & 1) {
        canvas.rectangle(x - 2, 30, 4, 20, colors::white);
      } else {
        canvas.disc(x, 40, 10, colors::white);
        canvas.disc(x, 40, 6, right ? colors::green : colors::red);
      }
    }
  }
#endif

 private:
  FUGU_HD static bool open(const State& s, const Params& p) { return s.count == kLength && s.typed == p.password; }
};

}  // namespace fugu
