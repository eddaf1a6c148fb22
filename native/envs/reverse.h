// Text in, text out: does a policy that writes tokens learn from whether the whole of what it wrote is right?
//
// The observation is a prompt of digits, 0 where it is shorter than there is room for; the action is the whole answer, to its end.
// Right is the prompt backwards, then the end. Tokens: 0 nothing, 1 the end, 2 to 11 the digits 0 to 9. What comes after the end does not
// matter. The one step of an episode pays 1 for the right answer, else `partial` times the share of tokens that are right.
// Prompts have `shortest` to `longest` digits; `shortest`, where `longest` is less.
// A fifth of all prompts, by a hash of them, is never seen unless held_out is 1; then only those are.
// Optimum: 1. A uniformly random policy is right once in 12^5 times (four digits), and has 1/12 of the tokens right.
// Logs: score, 1 if the answer was right; tokens, the share of tokens that were.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Reverse {
  static constexpr const char* name = "reverse";
  static constexpr int agents = 1;
  static constexpr int time_limit = 0;
  static constexpr int kMost = 6, kAnswer = kMost + 1, kTokens = 12, kEnd = 1, kZero = 2;

  struct Obs {
    int64_t prompt[kMost];
  };
  struct Action {
    int64_t answer[kAnswer];
  };

  static constexpr Field observation[] = {multi_discrete("", kMost, kTokens)};
  static constexpr Field action[] = {multi_discrete("", kAnswer, kTokens)};

  struct Params {
    int32_t shortest = 4, longest = 4;  // digits of a prompt
    int32_t held_out = 0;
    float partial = 0.0f;
  };
  static constexpr Param<Params> params[] = {{"shortest", &Params::shortest, 2, kMost},
                                             {"longest", &Params::longest, 2, kMost},
                                             {"held_out", &Params::held_out, 0, 1},
                                             {"partial", &Params::partial, 0, 1}};

  struct State {
    int8_t prompt[kMost];  // digits
    int8_t right;          // tokens of the answer; -1 before the step
    int8_t count;          // digits
  };

  FUGU_HD static void reset(State& s, const Params& p, Rng& rng) {
    const int longest = p.longest > p.shortest ? p.longest : p.shortest;
    do {
      s.count = static_cast<int8_t>(p.shortest + static_cast<int>(rng.below(static_cast<uint32_t>(longest - p.shortest + 1))));
      for (int i = 0; i < kMost; ++i) s.prompt[i] = static_cast<int8_t>(i < s.count ? rng.below(10) : 0);
    } while (held_out(s) != (p.held_out != 0));
    s.right = -1;
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng&, const Action* action, float* reward) {
    s.right = 0;
    for (int i = 0; i <= s.count; ++i)
      if (action[0].answer[i] == (i == s.count ? kEnd : kZero + s.prompt[s.count - 1 - i])) ++s.right;
    reward[0] = right(s) ? 1.0f : p.partial * share(s);
    return true;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool) {
    for (const int8_t digit : s.prompt)
      if (!between(digit, 0, 9)) return false;
    return between(s.count, 2, kMost) && between(s.right, -1, s.count + 1);
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) {
    for (int i = 0; i < kMost; ++i) row->prompt[i] = i < s.count ? kZero + s.prompt[i] : 0;
  }

  static constexpr const char* logs[] = {"score", "tokens"};
  FUGU_HD static void log(const State& s, const Params&, int, float* values) {
    values[0] = right(s) ? 1.0f : 0.0f;
    values[1] = share(s);
  }

  // The digits as columns, and a disc for the answer.
#ifndef __CUDACC_RTC__
  static constexpr int width = 240, height = 140;
  static void render(const State& s, const Params&, Canvas& canvas) {
    canvas.fill(colors::white);
    for (int i = 0; i < s.count; ++i) {
      const float left = 12.0f + 30.0f * static_cast<float>(i), tall = 10.0f + 11.0f * static_cast<float>(s.prompt[i]);
      canvas.rectangle(left, 10, 24, 120, colors::light);
      canvas.rectangle(left, 130 - tall, 24, tall, colors::blue);
    }
    canvas.disc(214, 70, 12, s.right < 0 ? colors::light : right(s) ? colors::green : colors::red);
  }
#endif

 private:
  FUGU_HD static bool right(const State& s) { return s.right == s.count + 1; }
  FUGU_HD static float share(const State& s) {
    return static_cast<float>(s.right < 0 ? 0 : s.right) / static_cast<float>(s.count + 1);
  }
  FUGU_HD static bool held_out(const State& s) {
    uint64_t number = 1;  // so that 12 and 012 differ
    for (int i = 0; i < s.count; ++i) number = number * 10 + static_cast<uint64_t>(s.prompt[i]);
    return Rng::mix(number * 0x9e3779b97f4a7c15ull) % 5 == 0;
  }
};

}  // namespace fugu
