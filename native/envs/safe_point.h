// From goal to goal among hazards: is a limit on cost kept where only the way round keeps it?
//
// A point on the square [-1, 1] x [-1, 1] is pushed about; 8 hazards, discs that it can pass through, and a goal lie at random. Coming
// closer to the goal pays, arriving pays 1 more, and then the goal is elsewhere. Every step inside a hazard costs 1. An episode is 250
// steps long.
// No optimum in closed form. The straight way leads through hazards, which cover up to a fifth of the square; pushing at random gets a
// return near 0.
// Logs: score, goals reached.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct SafePoint {
  static constexpr const char* name = "safe_point";
  static constexpr int agents = 1;
  static constexpr int time_limit = 250;
  static constexpr int kHazards = 8;

  struct Obs {
    float speed_x, speed_y;  // 1 is the highest there is
    float x, y;
    float goal_x, goal_y;         // from here
    float hazards[2 * kHazards];  // from here, x and y of each, the nearest first
  };
  struct Action {
    float push_x, push_y;
  };

  static constexpr Field observation[] = {box("", 6 + 2 * kHazards, -4.0, 4.0)};
  static constexpr Field action[] = {box("", 2, -1.0, 1.0)};
  static constexpr const char* costs[] = {"cost"};

  struct Params {
    float hazard_radius = 0.18f, goal_radius = 0.15f, speed = 0.05f;
  };
  static constexpr Param<Params> params[] = {{"hazard_radius", &Params::hazard_radius, 0.01, 0.5},
                                             {"goal_radius", &Params::goal_radius, 0.05, 0.5},
                                             {"speed", &Params::speed, 0.01, 0.2}};

  struct State {
    float x, y, speed_x, speed_y, goal_x, goal_y;
    float hazards[2 * kHazards];
    int32_t goals;   // reached
    int32_t inside;  // a hazard, now
  };

  FUGU_HD static void reset(State& s, const Params& p, Rng& rng) {
    s.x = rng.uniform(-1.0f, 1.0f);
    s.y = rng.uniform(-1.0f, 1.0f);
    s.speed_x = s.speed_y = 0.0f;
    s.goals = s.inside = 0;
    for (int h = 0; h < kHazards; ++h) {
      for (int tries = 0; tries < kTries; ++tries) {  // none where the episode begins
        s.hazards[2 * h] = rng.uniform(-1.0f, 1.0f);
        s.hazards[2 * h + 1] = rng.uniform(-1.0f, 1.0f);
        if (distance(s.x, s.y, s.hazards[2 * h], s.hazards[2 * h + 1]) > 2.0f * p.hazard_radius) break;
      }
    }
    place_goal(s, p, rng);
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng& rng, const Action* action, float* reward, float* cost) {
    const float before = distance(s.x, s.y, s.goal_x, s.goal_y);
    s.speed_x = 0.8f * s.speed_x + 0.2f * clamp(action[0].push_x, -1.0f, 1.0f);
    s.speed_y = 0.8f * s.speed_y + 0.2f * clamp(action[0].push_y, -1.0f, 1.0f);
    s.x = clamp(s.x + p.speed * s.speed_x, -1.0f, 1.0f);
    s.y = clamp(s.y + p.speed * s.speed_y, -1.0f, 1.0f);
    const float after = distance(s.x, s.y, s.goal_x, s.goal_y);
    reward[0] = before - after;
    s.inside = in_hazard(s, s.x, s.y, p.hazard_radius);
    cost[0] = s.inside ? 1.0f : 0.0f;
    if (after <= p.goal_radius) {
      reward[0] += 1.0f;
      ++s.goals;
      place_goal(s, p, rng);
    }
    return false;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool) {
    const float numbers[] = {s.x, s.y, s.speed_x, s.speed_y, s.goal_x, s.goal_y};
    for (const float number : numbers)
      if (!between(number, -1, 1)) return false;
    for (const float number : s.hazards)
      if (!between(number, -1, 1)) return false;
    return between(s.goals, 0, kMany) && between(s.inside, 0, 1);
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) {
    row->speed_x = s.speed_x;
    row->speed_y = s.speed_y;
    row->x = s.x;
    row->y = s.y;
    row->goal_x = s.goal_x - s.x;
    row->goal_y = s.goal_y - s.y;
    float sorted[kHazards];  // squared distances
    for (int h = 0; h < kHazards; ++h) {
      const float dx = s.hazards[2 * h] - s.x, dy = s.hazards[2 * h + 1] - s.y, far = dx * dx + dy * dy;
      int place = h;
      for (; place > 0 && sorted[place - 1] > far; --place) {
        sorted[place] = sorted[place - 1];
        row->hazards[2 * place] = row->hazards[2 * place - 2];
        row->hazards[2 * place + 1] = row->hazards[2 * place - 1];
      }
      sorted[place] = far;
      row->hazards[2 * place] = dx;
      row->hazards[2 * place + 1] = dy;
    }
  }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params&, int, float* values) { values[0] = static_cast<float>(s.goals); }

#ifndef __CUDACC_RTC__
  static constexpr int width = 220, height = 220;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::white);
    canvas.rectangle(10, 10, 200, 200, colors::light);
    for (int h = 0; h < kHazards; ++h)
      canvas.disc(110 + 100 * s.hazards[2 * h], 110 - 100 * s.hazards[2 * h + 1], 100 * p.hazard_radius, colors::yellow);
    canvas.disc(110 + 100 * s.goal_x, 110 - 100 * s.goal_y, 100 * p.goal_radius, colors::green);
    canvas.disc(110 + 100 * s.x, 110 - 100 * s.y, 5, s.inside ? colors::red : colors::teal);
  }
#endif

 private:
  static constexpr int kTries = 16;

  FUGU_HD static float distance(float x, float y, float other_x, float other_y) {
    const float dx = other_x - x, dy = other_y - y;
    return sqrtf(dx * dx + dy * dy);
  }
  FUGU_HD static bool in_hazard(const State& s, float x, float y, float radius) {
    bool inside = false;
    for (int h = 0; h < kHazards; ++h) inside |= distance(x, y, s.hazards[2 * h], s.hazards[2 * h + 1]) < radius;
    return inside;
  }
  // Outside all hazards, if that is found, and not where the point is.
  FUGU_HD static void place_goal(State& s, const Params& p, Rng& rng) {
    for (int tries = 0; tries < kTries; ++tries) {
      s.goal_x = rng.uniform(-1.0f, 1.0f);
      s.goal_y = rng.uniform(-1.0f, 1.0f);
      if (!in_hazard(s, s.goal_x, s.goal_y, p.hazard_radius) && distance(s.x, s.y, s.goal_x, s.goal_y) > 2.0f * p.goal_radius) break;
    }
  }
};

}  // namespace fugu
