// Two links, the joint between them driven, to be swung above a line: Gymnasium's Acrobot-v1 (the equations of Sutton and
// Barto's book, one Runge-Kutta step of 0.2 s).
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Acrobot {
  static constexpr const char* name = "acrobot";
  static constexpr int agents = 1;
  static constexpr int time_limit = 500;
  static constexpr bool lanes = true;

  struct Obs {
    float cosine1, sine1, cosine2, sine2, theta1_dot, theta2_dot;
  };
  using Action = int64_t;  // torque -1, 0, +1

  static constexpr float kPi = 3.14159265358979f;
  static constexpr float kSpeed1 = 4.0f * kPi, kSpeed2 = 9.0f * kPi;
  static constexpr float kHigh[6] = {1, 1, 1, 1, kSpeed1, kSpeed2};
  static constexpr float kLow[6] = {-1, -1, -1, -1, -kSpeed1, -kSpeed2};
  static constexpr Field observation[] = {box("", kLow, kHigh)};
  static constexpr Field action[] = {discrete("", 3)};

  struct Params {
    float length1 = 1.0f, mass1 = 1.0f, mass2 = 1.0f, center1 = 0.5f, center2 = 0.5f, inertia = 1.0f, gravity = 9.8f, dt = 0.2f;
  };
  static constexpr Param<Params> params[] = {
      {"length1", &Params::length1, 0.2, 3}, {"mass1", &Params::mass1, 0.2, 5},    {"mass2", &Params::mass2, 0.2, 5},
      {"center1", &Params::center1, 0.1, 2}, {"center2", &Params::center2, 0.1, 2}, {"inertia", &Params::inertia, 0.2, 5},
      {"gravity", &Params::gravity, 0, 30},  {"dt", &Params::dt, 1e-3, 0.25}};

  struct State {
    float theta1, theta2, theta1_dot, theta2_dot;
  };

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    s.theta1 = rng.uniform(-0.1f, 0.1f);
    s.theta2 = rng.uniform(-0.1f, 0.1f);
    s.theta1_dot = rng.uniform(-0.1f, 0.1f);
    s.theta2_dot = rng.uniform(-0.1f, 0.1f);
  }

  FUGU_HD static bool step(State& s, const Params& p, const Action* action, float* reward) {
    const float torque = static_cast<float>(static_cast<int>(action[0]) - 1);
    const State k1 = slope(s, p, torque), k2 = slope(ahead(s, k1, p.dt / 2), p, torque);
    const State k3 = slope(ahead(s, k2, p.dt / 2), p, torque), k4 = slope(ahead(s, k3, p.dt), p, torque);
    const float sixth = p.dt / 6.0f;
    s.theta1 = wrap(s.theta1 + sixth * (k1.theta1 + 2 * k2.theta1 + 2 * k3.theta1 + k4.theta1));
    s.theta2 = wrap(s.theta2 + sixth * (k1.theta2 + 2 * k2.theta2 + 2 * k3.theta2 + k4.theta2));
    s.theta1_dot += sixth * (k1.theta1_dot + 2 * k2.theta1_dot + 2 * k3.theta1_dot + k4.theta1_dot);
    s.theta2_dot += sixth * (k1.theta2_dot + 2 * k2.theta2_dot + 2 * k3.theta2_dot + k4.theta2_dot);
    s.theta1_dot = clamp(s.theta1_dot, -kSpeed1, kSpeed1);
    s.theta2_dot = clamp(s.theta2_dot, -kSpeed2, kSpeed2);
    float sine, cosine1, cosine12;
    sin_cos(s.theta1, sine, cosine1);
    sin_cos(s.theta1 + s.theta2, sine, cosine12);
    const bool up = -cosine1 - cosine12 > 1.0f;
    reward[0] = select(up, 0.0f, -1.0f);
    return up;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool) {  // wrap() leaves a little more than half a turn
    return between(s.theta1, -4, 4) && between(s.theta2, -4, 4) && between(s.theta1_dot, -kSpeed1, kSpeed1) &&
           between(s.theta2_dot, -kSpeed2, kSpeed2);
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) {
    sin_cos(s.theta1, row->sine1, row->cosine1);
    sin_cos(s.theta2, row->sine2, row->cosine2);
    row->theta1_dot = s.theta1_dot;
    row->theta2_dot = s.theta2_dot;
  }

#ifndef __CUDACC_RTC__
  static constexpr int width = 500, height = 500;

  static void render(const State& s, const Params& p, Canvas& canvas) {
    const float scale = static_cast<float>(width) / 4.4f, x0 = static_cast<float>(width) / 2, y0 = static_cast<float>(height) / 2;
    float sine1, cosine1, sine12, cosine12;
    sin_cos(s.theta1, sine1, cosine1);
    sin_cos(s.theta1 + s.theta2, sine12, cosine12);
    const float x1 = x0 + scale * p.length1 * sine1, y1 = y0 + scale * p.length1 * cosine1;
    canvas.fill(colors::white);
    canvas.rectangle(0, y0 - scale, static_cast<float>(width), 2, colors::gray);  // the line to be reached
    canvas.line(x0, y0, x1, y1, 20, colors::teal);
    canvas.line(x1, y1, x1 + scale * sine12, y1 + scale * cosine12, 20, colors::teal);
    canvas.disc(x0, y0, 9, colors::yellow);
    canvas.disc(x1, y1, 9, colors::yellow);
  }
#endif

 private:
  FUGU_HD static State ahead(const State& s, const State& k, float dt) {
    return {s.theta1 + dt * k.theta1, s.theta2 + dt * k.theta2, s.theta1_dot + dt * k.theta1_dot, s.theta2_dot + dt * k.theta2_dot};
  }

  FUGU_HD static State slope(const State& s, const Params& p, float torque) {
    float sine2, cosine2, sine1, cosine1;
    sin_cos(s.theta1, sine1, cosine1);
    sin_cos(s.theta2, sine2, cosine2);
    const float sine12 = sine1 * cosine2 + cosine1 * sine2;  // of theta1 + theta2
    const float d1 = p.mass1 * p.center1 * p.center1 +
                     p.mass2 * (p.length1 * p.length1 + p.center2 * p.center2 + 2 * p.length1 * p.center2 * cosine2) + 2 * p.inertia;
    const float d2 = p.mass2 * (p.center2 * p.center2 + p.length1 * p.center2 * cosine2) + p.inertia;
    // cos(a - pi/2) = sin(a)
    const float phi2 = p.mass2 * p.center2 * p.gravity * sine12;
    const float phi1 = -p.mass2 * p.length1 * p.center2 * s.theta2_dot * s.theta2_dot * sine2 -
                       2 * p.mass2 * p.length1 * p.center2 * s.theta2_dot * s.theta1_dot * sine2 +
                       (p.mass1 * p.center1 + p.mass2 * p.length1) * p.gravity * sine1 + phi2;
    const float acc2 = (torque + d2 / d1 * phi1 - p.mass2 * p.length1 * p.center2 * s.theta1_dot * s.theta1_dot * sine2 - phi2) /
                       (p.mass2 * p.center2 * p.center2 + p.inertia - d2 * d2 / d1);
    return {s.theta1_dot, s.theta2_dot, -(d2 * acc2 + phi1) / d1, acc2};
  }
};

}  // namespace fugu
