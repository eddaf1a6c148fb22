// An underpowered car in a valley: Gymnasium's MountainCar-v0.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct MountainCar {
  static constexpr const char* name = "mountain_car";
  static constexpr int agents = 1;
  static constexpr int time_limit = 200;
  static constexpr bool lanes = true;

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
  static constexpr Param<Params> params[] = {
      {"goal", &Params::goal, -0.4, 0.6}, {"goal_velocity", &Params::goal_velocity, 0, 0.07},
      {"force", &Params::force, 0, 0.1},  {"gravity", &Params::gravity, 0, 0.1}};

  using State = Obs;

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    s.position = rng.uniform(-0.6f, -0.4f);
    s.velocity = 0.0f;
  }

  FUGU_HD static bool step(State& s, const Params& p, const Action* action, float* reward) {
    float sine, slope;
    sin_cos(3.0f * s.position, sine, slope);
    const float push = static_cast<float>(static_cast<int>(action[0]) - 1) * p.force;
    s.velocity = clamp(s.velocity + push - slope * p.gravity, -0.07f, 0.07f);
    const float moved = s.position + s.velocity;
    s.position = clamp(moved, -1.2f, 0.6f);
    s.velocity = select((moved <= -1.2f) & (s.velocity < 0), 0.0f, s.velocity);  // the wall on the left stops it
    reward[0] = -1.0f;
    return (s.position >= p.goal) & (s.velocity >= p.goal_velocity);
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool) {
    return between(s.position, -1.2f, 0.6f) && between(s.velocity, -0.07f, 0.07f);
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) { *row = s; }

#ifndef __CUDACC_RTC__
  static constexpr int width = 600, height = 400;

  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::white);
    for (float x = 0; x < static_cast<float>(width); x += 1.0f) {
      const float ground = pixel_y(position_at(x));
      canvas.rectangle(x, ground, 1, static_cast<float>(height) - ground, colors::light);
      canvas.line(x, ground, x + 1, pixel_y(position_at(x + 1)), 3, colors::gray);
    }
    const float goal_x = pixel_x(p.goal), goal_y = pixel_y(p.goal);
    canvas.line(goal_x, goal_y, goal_x, goal_y - 48, 3, colors::black);
    for (int i = 0; i < 14; ++i)  // the flag, line by line
      canvas.rectangle(goal_x, goal_y - 48 + static_cast<float>(i), 24 - 1.6f * fabsf(static_cast<float>(i) - 7), 1, colors::red);
    float sine, cosine;
    sin_cos(3.0f * s.position, sine, cosine);
    const float rise = 1.35f * cosine, length = sqrtf(1 + rise * rise);  // the slope under the car, in pixels
    const float along_x = 1 / length, along_y = -rise / length, up_x = -rise / length, up_y = -1 / length;
    const float x = pixel_x(s.position), y = pixel_y(s.position);
    canvas.line(x - 15 * along_x + 16 * up_x, y - 15 * along_y + 16 * up_y, x + 15 * along_x + 16 * up_x, y + 15 * along_y + 16 * up_y,
                16, colors::teal);
    for (const float wheel : {-13.0f, 13.0f}) canvas.disc(x + wheel * along_x + 7 * up_x, y + wheel * along_y + 7 * up_y, 7, colors::black);
  }

 private:
  static constexpr float kScale = static_cast<float>(width) / 1.8f;  // pixels per unit of position, -1.2 to 0.6

  static float position_at(float x) { return x / kScale - 1.2f; }
  static float pixel_x(float position) { return (position + 1.2f) * kScale; }
  static float pixel_y(float position) { return static_cast<float>(height) - 40 - kScale * (0.45f * sinf(3.0f * position) + 0.45f); }
#endif
};

}  // namespace fugu
