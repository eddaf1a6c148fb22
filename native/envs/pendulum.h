// A pendulum to be swung up and held with a weak motor: Gymnasium's Pendulum-v1. Never terminates by itself.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Pendulum {
  static constexpr const char* name = "pendulum";
  static constexpr int agents = 1;
  static constexpr int time_limit = 200;
  static constexpr bool lanes = true;

  struct Obs {
    float cosine, sine, theta_dot;
  };
  struct Action {
    float torque;
  };

  static constexpr float kPi = 3.14159265358979f;
  static constexpr float kHigh[3] = {1.0f, 1.0f, 8.0f};
  static constexpr float kLow[3] = {-1.0f, -1.0f, -8.0f};
  static constexpr Field observation[] = {box("", kLow, kHigh)};
  static constexpr Field action[] = {box("", 1, -2.0, 2.0)};

  struct Params {
    float gravity = 10.0f, mass = 1.0f, length = 1.0f, max_speed = 8.0f, max_torque = 2.0f, dt = 0.05f;
  };
  static constexpr Param<Params> params[] = {
      {"gravity", &Params::gravity, 0, 100},     {"mass", &Params::mass, 0.01, 100},       {"length", &Params::length, 0.01, 100},
      {"max_speed", &Params::max_speed, 0.1, 8}, {"max_torque", &Params::max_torque, 0, 100}, {"dt", &Params::dt, 1e-4, 1}};

  struct State {
    float theta, theta_dot;
  };

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    s.theta = rng.uniform(-kPi, kPi);
    s.theta_dot = rng.uniform(-1.0f, 1.0f);
  }

  FUGU_HD static bool step(State& s, const Params& p, const Action* action, float* reward) {
    const float torque = clamp(action[0].torque, -p.max_torque, p.max_torque);
    const float angle = wrap(s.theta);
    reward[0] = -(angle * angle + 0.1f * s.theta_dot * s.theta_dot + 0.001f * torque * torque);
    float sine, cosine;
    sin_cos(s.theta, sine, cosine);
    const float acceleration = 3.0f * p.gravity / (2.0f * p.length) * sine + 3.0f / (p.mass * p.length * p.length) * torque;
    s.theta_dot = clamp(s.theta_dot + acceleration * p.dt, -p.max_speed, p.max_speed);
    s.theta = angle + s.theta_dot * p.dt;  // at most one step beyond a turn
    return false;
  }

  FUGU_HD static bool valid(const State& s, const Params& p, bool) {
    const float fastest = p.max_speed > 1.0f ? p.max_speed : 1.0f;  // an episode begins with up to 1
    const float furthest = 4.0f + fastest * p.dt;
    return between(s.theta, -furthest, furthest) && between(s.theta_dot, -fastest, fastest);
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) {
    sin_cos(s.theta, row->sine, row->cosine);
    row->theta_dot = s.theta_dot;
  }

#ifndef __CUDACC_RTC__
  static constexpr int width = 400, height = 400;

  static void render(const State& s, const Params& p, Canvas& canvas) {
    const float x = static_cast<float>(width) / 2, y = static_cast<float>(height) / 2;
    const float rod = 150.0f * (p.length < 1.2f ? p.length : 1.2f);
    float sine, cosine;
    sin_cos(s.theta, sine, cosine);  // zero is upright, positive turns to the left, as in Gymnasium's picture
    canvas.fill(colors::white);
    canvas.line(x, y, x - rod * sine, y - rod * cosine, 36, colors::red);
    canvas.disc(x, y, 8, colors::black);
  }
#endif
};

}  // namespace fugu
