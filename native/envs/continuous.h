// A point to be moved to a target in the plane: does the algorithm learn real-valued actions?
//
// The point starts at (0, 0); the target's coordinates have random signs and sizes uniform in [0.3, 1]. The observation is (x,
// y, target x, target y). An action moves the point by `speed` (0.1) times itself, each part cut off at -1 and 1, within the
// square [-1, 1]. With d the distance to the target, a step pays (d before - d after) / (d at the start). Within `radius` (0.1)
// of the target the point jumps onto it, which pays the rest and ends the episode; the time limit is 50 steps.
// Optimum: straight to the target (action = the way that is left divided by the speed), return 1 in at most 10 steps. A
// uniformly random policy has a mean return of -0.11 and a mean score of 0.12.
// Logs: score, the return but not below 0.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Continuous {
  static constexpr const char* name = "continuous";
  static constexpr int agents = 1;
  static constexpr int time_limit = 50;

  struct Obs {
    float x, y, target_x, target_y;
  };
  struct Action {
    float x, y;
  };

  static constexpr Field observation[] = {box("", 4, -1.0, 1.0)};
  static constexpr Field action[] = {box("", 2, -1.0, 1.0)};

  struct Params {
    float speed = 0.1f, radius = 0.1f;
  };
  static constexpr Param<Params> params[] = {{"speed", &Params::speed, 0, 2}, {"radius", &Params::radius, 0, 0.3}};

  struct State {
    Obs at;
    float distance, start;  // to the target, now and in the beginning
  };

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    const float x = rng.uniform(-0.7f, 0.7f), y = rng.uniform(-0.7f, 0.7f);
    s.at = {0.0f, 0.0f, x < 0 ? x - 0.3f : x + 0.3f, y < 0 ? y - 0.3f : y + 0.3f};
    s.distance = s.start = away(s.at);
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng&, const Action* action, float* reward) {
    s.at.x = clamp(s.at.x + p.speed * clamp(action[0].x, -1.0f, 1.0f), -1.0f, 1.0f);
    s.at.y = clamp(s.at.y + p.speed * clamp(action[0].y, -1.0f, 1.0f), -1.0f, 1.0f);
    float distance = away(s.at);
    const bool there = distance <= p.radius;
    if (there) {
      s.at.x = s.at.target_x;
      s.at.y = s.at.target_y;
      distance = 0.0f;
    }
    reward[0] = (s.distance - distance) / s.start;
    s.distance = distance;
    return there;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool) {
    return between(s.at.x, -1, 1) && between(s.at.y, -1, 1) && between(s.at.target_x, -1, 1) && between(s.at.target_y, -1, 1) &&
           between(s.distance, 0, 3) && between(s.start, 0.4, 1.5);
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) { *row = s.at; }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params&, int, float* values) {
    values[0] = clamp(1.0f - s.distance / s.start, 0.0f, 1.0f);
  }

#ifndef __CUDACC_RTC__
  static constexpr int width = 220, height = 220;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::white);
    canvas.rectangle(10, 10, 200, 200, colors::light);
    canvas.disc(110 + 100 * s.at.target_x, 110 - 100 * s.at.target_y, 100 * p.radius > 4 ? 100 * p.radius : 4, colors::orange);
    canvas.line(110, 110, 110 + 100 * s.at.x, 110 - 100 * s.at.y, 1.5f, colors::gray);
    canvas.disc(110 + 100 * s.at.x, 110 - 100 * s.at.y, 5, colors::teal);
  }
#endif

 private:
  FUGU_HD static float away(const Obs& at) {
    const float dx = at.target_x - at.x, dy = at.target_y - at.y;
    return sqrtf(dx * dx + dy * dy);
  }
};

}  // namespace fugu
