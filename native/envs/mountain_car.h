// An underpowered car in a valley: Gymnasium's MountainCar-v0.
#pragma once

#include "../env.h"

namespace fugu {

struct MountainCar {
  static constexpr const char* name = "mountain_car";
  static constexpr int agents = 1;
  static constexpr int time_limit = 200;

  struct Obs {
    float position, velocity;
  };
  using Action = int64_t;  // 0 push left, 1 nothing, 2 push right

  static constexpr float kLow[2] = {-1.2f, -0.07f};
  static constexpr float kHigh[2] = {0.6f, 0.07f};
  static constexpr Field observation[] = {box("", kLow, kHigh)};
  static constexpr Field action[] = {discrete("", 3)};

  struct Params {
    float goal = 0.5f, goal_velocity = 0.0f, force = 0.001f, gravity = 0.0025f;
  };
  static constexpr Param<Params> params[] = {{"goal", &Params::goal}, {"goal_velocity", &Params::goal_velocity},
                                             {"force", &Params::force}, {"gravity", &Params::gravity}};

  using State = Obs;

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    s.position = rng.uniform(-0.6f, -0.4f);
    s.velocity = 0.0f;
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng&, const Action* action, float* reward) {
    float sine, slope;
    sin_cos(3.0f * s.position, sine, slope);
    s.velocity = clamp(s.velocity + static_cast<float>(action[0] - 1) * p.force - slope * p.gravity, -0.07f, 0.07f);
    s.position = clamp(s.position + s.velocity, -1.2f, 0.6f);
    if (s.position == -1.2f && s.velocity < 0) s.velocity = 0;
    reward[0] = -1.0f;
    return s.position >= p.goal && s.velocity >= p.goal_velocity;
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) { *row = s; }
};

}  // namespace fugu
