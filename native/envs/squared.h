// A walk from the middle of a square to a mark on its border: does the algorithm learn anything from a picture?
//
// The square has 11 x 11 fields, in the observation 0 for empty, 1 for the mark, 2 for the agent. The agent starts in the
// middle, the mark lies on one of the 40 fields of the border. An action is a step to one of the eight neighbours (0 up, then
// clockwise by 45 degrees); one that would leave the square moves along the border or not at all. With d the distance to the
// mark in such steps (5 at the start), a step pays (d before - d after) / 5. Reaching the mark ends the episode; the time limit
// is 20 steps.
// Optimum: straight to the mark in 5 steps, return 1. A uniformly random policy reaches it in 1 episode of 22; its mean return
// is -0.163, its mean score 0.019.
// Logs: score, 5 / steps if the mark was reached, else 0.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Squared {
  static constexpr const char* name = "squared";
  static constexpr int agents = 1;
  static constexpr int time_limit = 20;
  static constexpr int kSide = 11, kMiddle = kSide / 2;

  struct Obs {
    uint8_t field[kSide * kSide];
  };
  using Action = int64_t;  // direction

  static constexpr Field observation[] = {bytes("", kSide, kSide, 2)};
  static constexpr Field action[] = {discrete("", 8)};

  struct Params {};

  struct State {
    int8_t x, y, mark_x, mark_y, distance;
    int32_t steps;
  };

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    s.x = s.y = kMiddle;
    // 0 .. 9 along each side, clockwise, without branches
    const int around = static_cast<int>(rng.below(4 * (kSide - 1))), side = around / (kSide - 1), along = around % (kSide - 1);
    const int back = side >> 1, upright = side & 1;
    const int at = back ? kSide - 1 - along : along, edge = upright != back ? kSide - 1 : 0;
    const int x = upright ? edge : at, y = upright ? at : edge;
    s.mark_x = static_cast<int8_t>(x);
    s.mark_y = static_cast<int8_t>(y);
    s.distance = kMiddle;
    s.steps = 0;
  }

  FUGU_HD static bool step(State& s, const Params&, Rng&, const Action* action, float* reward) {
    // two bits per direction: 0, 1, 2 for -1, 0, 1
    const int x = within(s.x + ((kStepX >> 2 * action[0]) & 3) - 1);
    const int y = within(s.y + ((kStepY >> 2 * action[0]) & 3) - 1);
    const int dx = apart(x, s.mark_x), dy = apart(y, s.mark_y), distance = dx > dy ? dx : dy;
    reward[0] = static_cast<float>(s.distance - distance) * (1.0f / kMiddle);
    s.x = static_cast<int8_t>(x);
    s.y = static_cast<int8_t>(y);
    s.distance = static_cast<int8_t>(distance);
    ++s.steps;
    return distance == 0;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool) {
    const int8_t places[] = {s.x, s.y, s.mark_x, s.mark_y};
    for (const int8_t at : places)
      if (!between(at, 0, kSide - 1)) return false;
    return between(s.distance, 0, kSide - 1) && between(s.steps, 0, kMany);
  }

  // A few wide stores of zeros and two bytes: cheaper than to know which bytes of the row are old.
  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) {
    clear<sizeof row->field>(row->field);
    row->field[s.mark_y * kSide + s.mark_x] = 1;
    row->field[s.y * kSide + s.x] = 2;
  }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params&, int, float* values) {
    values[0] = s.distance == 0 ? static_cast<float>(kMiddle) / static_cast<float>(s.steps) : 0.0f;
  }

#ifndef __CUDACC_RTC__
  static constexpr int width = 20 * kSide, height = 20 * kSide;
  static void render(const State& s, const Params&, Canvas& canvas) {
    canvas.fill(colors::white);
    for (int y = 0; y < kSide; ++y)
      for (int x = 0; x < kSide; ++x)
        canvas.rectangle(20.0f * static_cast<float>(x) + 1, 20.0f * static_cast<float>(y) + 1, 18, 18, colors::light);
    canvas.rectangle(20.0f * s.mark_x + 1, 20.0f * s.mark_y + 1, 18, 18, colors::orange);
    canvas.disc(20.0f * s.x + 9.5f, 20.0f * s.y + 9.5f, 7, colors::teal);
  }
#endif

 private:
  //                               up-left left  dl    down  dr    right ur    up
  static constexpr unsigned kStepX = 0b00'00'00'01'10'10'10'01;
  static constexpr unsigned kStepY = 0b00'01'10'10'10'01'00'00;

  FUGU_HD static int within(int at) { return at < 0 ? 0 : at > kSide - 1 ? kSide - 1 : at; }
  FUGU_HD static int apart(int a, int b) { return a - b < 0 ? -(a - b) : a - b; }
};

}  // namespace fugu
