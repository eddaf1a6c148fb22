// A pole on a cart, pushed left or right: Gymnasium's CartPole-v1, with its equations and its explicit Euler step.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct CartPole {
  static constexpr const char* name = "cartpole";
  static constexpr int agents = 1;
  static constexpr int time_limit = 500;
  static constexpr bool lanes = true;

  struct Obs {
    float x, x_dot, theta, theta_dot;
  };
  using Action = int64_t;  // 0 left, 1 right

  static constexpr float kHigh[4] = {4.8f, kInf, 0.41887903f, kInf};
  static constexpr float kLow[4] = {-4.8f, -kInf, -0.41887903f, -kInf};
  static constexpr Field observation[] = {box("", kLow, kHigh)};
  static constexpr Field action[] = {discrete("", 2)};

  struct Params {
    float gravity = 9.8f, cart_mass = 1.0f, pole_mass = 0.1f, half_length = 0.5f, force = 10.0f, dt = 0.02f;
    float max_x = 2.4f, max_theta = 0.20943951f;  // 12 degrees
  };
  static constexpr Param<Params> params[] = {
      {"gravity", &Params::gravity, 0, 100},           {"cart_mass", &Params::cart_mass, 0.05, 100},
      {"pole_mass", &Params::pole_mass, 0.005, 10},    {"half_length", &Params::half_length, 0.05, 10},
      {"force", &Params::force, 0, 100},               {"dt", &Params::dt, 1e-4, 0.1},
      {"max_x", &Params::max_x, 0.1, 1e6},             {"max_theta", &Params::max_theta, 0.06, 1e6}};

  using State = Obs;

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    s.x = rng.uniform(-0.05f, 0.05f);
    s.x_dot = rng.uniform(-0.05f, 0.05f);
    s.theta = rng.uniform(-0.05f, 0.05f);
    s.theta_dot = rng.uniform(-0.05f, 0.05f);
  }

  FUGU_HD static bool step(State& s, const Params& p, const Action* action, float* reward) {
    const float force = select(static_cast<int>(action[0]) == 1, p.force, -p.force);
    float sine, cosine;
    sin_cos(s.theta, sine, cosine);
    const float per_mass = 1.0f / (p.cart_mass + p.pole_mass), pole_moment = p.pole_mass * p.half_length;
    const float push = (force + pole_moment * s.theta_dot * s.theta_dot * sine) * per_mass;
    const float theta_acc =
        (p.gravity * sine - cosine * push) / (p.half_length * (4.0f / 3.0f - p.pole_mass * cosine * cosine * per_mass));
    const float x_acc = push - pole_moment * theta_acc * cosine * per_mass;
    s.x += p.dt * s.x_dot;
    s.x_dot += p.dt * x_acc;
    s.theta += p.dt * s.theta_dot;
    s.theta_dot += p.dt * theta_acc;
    reward[0] = 1.0f;
    return (s.x < -p.max_x) | (s.x > p.max_x) | (s.theta < -p.max_theta) | (s.theta > p.max_theta);
  }

  // No faster than the strongest push there can be makes it from one end to the other. The push of the last step may be stronger.
  FUGU_HD static bool valid(const State& s, const Params& p, bool over) {
    const float per_mass = 1.0f / (p.cart_mass + p.pole_mass), pole_moment = p.pole_mass * p.half_length;
    const float spin = 2.0f * p.max_theta / p.dt, push = (p.force + pole_moment * spin * spin) * per_mass;
    const float theta_acc = (p.gravity + push) / (p.half_length * (4.0f / 3.0f - p.pole_mass * per_mass));
    const float x_acc = push + pole_moment * theta_acc * per_mass;
    const float x_dot = fastest(p.max_x, x_acc, p.dt), theta_dot = fastest(p.max_theta, theta_acc, p.dt);
    const float x = p.max_x + (over ? p.dt * x_dot : 0.0f), theta = p.max_theta + (over ? p.dt * theta_dot : 0.0f);
    if (!between(s.x, -x, x) || !between(s.theta, -theta, theta)) return false;
    if (over) return is_finite(s.x_dot) && is_finite(s.theta_dot);
    return between(s.x_dot, -x_dot, x_dot) && between(s.theta_dot, -theta_dot, theta_dot);
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) { *row = s; }

#ifndef __CUDACC_RTC__
  static constexpr int width = 600, height = 400;

  static void render(const State& s, const Params& p, Canvas& canvas) {
    const float scale = static_cast<float>(width) / (2.0f * p.max_x), rail = 300.0f;
    const float x = static_cast<float>(width) / 2 + s.x * scale, pole = scale * 2.0f * p.half_length;
    float sine, cosine;
    sin_cos(s.theta, sine, cosine);
    canvas.fill(colors::white);
    canvas.rectangle(0, rail, static_cast<float>(width), 2, colors::gray);
    canvas.disc(x - 22, rail - 6, 8, colors::gray);
    canvas.disc(x + 22, rail - 6, 8, colors::gray);
    canvas.rectangle(x - 40, rail - 42, 80, 32, colors::black);
    canvas.line(x, rail - 36, x + pole * sine, rail - 36 - pole * cosine, 12, colors::orange);
    canvas.disc(x, rail - 36, 6, colors::blue);
  }
#endif

 private:
  // From -end to end with this acceleration in each step, after a start of 0.05.
  FUGU_HD static float fastest(float end, float acceleration, float dt) {
    return 2.0f * sqrtf(acceleration * end) + 2.0f * acceleration * dt + 0.05f;
  }
};

}  // namespace fugu
