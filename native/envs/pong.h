// Table tennis against a scripted opponent.
//
// The table is the square from -1 to 1, y pointing down. The player's paddle stands at x = 0.9, the opponent's at x = -0.9.
// Each step moves, in this order,
//   the player       by paddle_speed up or down, not beyond the table;
//   the opponent     by at most opponent_speed: towards the ball's y while the ball comes closer in its own half (x < 0),
//                    towards the middle otherwise;
//   the ball         by its velocity; it is mirrored at y = -1 and y = 1.
// A ball that crosses a paddle's x in this step no further than paddle_size / 2 + 0.03 from the paddle's middle (y after the
// step) is mirrored there; its horizontal speed grows by the factor speedup, up to max_speed, and its vertical velocity by
// spin * (distance from the paddle's middle / the reach above), cut to +-max_speed. A ball beyond x = 1 or -1 is a point; then
// it is served again from the middle towards the one who lost it, at speed `serve` and a random vertical velocity of up to
// 0.8 * serve. Paddles stay where they are.
//
// Observation: 8 floats in [-1, 1]: player's y, opponent's y, ball's x and y, its velocity in x and y / max_speed, the points
// of player and opponent / points. Actions: 0 stay, 1 up, 2 down. Reward: 1 for a point won, -1 for one lost. The episode ends
// when one side has `points`.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Pong {
  static constexpr const char* name = "pong";
  static constexpr int agents = 1;
  static constexpr int time_limit = 10000;

  struct Obs {
    float player, opponent, x, y, vx, vy, won, lost;
  };
  using Action = int64_t;
  static constexpr Field observation[] = {box("", 8, -1.0, 1.0)};
  static constexpr Field action[] = {discrete("", 3)};

  struct Params {
    float paddle_size = 0.4f, paddle_speed = 0.06f, opponent_speed = 0.03f;
    float serve = 0.04f, speedup = 1.08f, max_speed = 0.08f, spin = 0.03f;
    int32_t points = 11;
  };
  static constexpr Param<Params> params[] = {
      {"paddle_size", &Params::paddle_size, 0.02, 2.0}, {"paddle_speed", &Params::paddle_speed, 0.0, 1.0},
      {"opponent_speed", &Params::opponent_speed, 0.0, 1.0}, {"serve", &Params::serve, 0.001, 0.5},
      {"speedup", &Params::speedup, 1.0, 2.0}, {"max_speed", &Params::max_speed, 0.001, 0.5},
      {"spin", &Params::spin, 0.0, 0.5}, {"points", &Params::points, 1, 1000000}};

  struct State {
    float player, opponent, x, y, vx, vy;
    int32_t won, lost;
  };

  static constexpr float kPaddle = 0.9f, kBall = 0.03f;  // where paddles stand; half the ball's size

  static constexpr const char* logs[] = {"score", "won"};
  FUGU_HD static void log(const State& s, const Params& p, int, float* values) {
    values[0] = static_cast<float>(s.won - s.lost);
    values[1] = s.won >= p.points ? 1.0f : 0.0f;
  }

  FUGU_HD static void reset(State& s, const Params& p, Rng& rng) {
    s.player = s.opponent = 0.0f;
    s.won = s.lost = 0;
    launch(s, p, rng, rng.below(2) != 0);
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng& rng, const Action* action, float* reward) {
    const float half = 0.5f * p.paddle_size, room = 1.0f - half;
    const float turn = static_cast<float>(static_cast<int>(action[0] == 2) - static_cast<int>(action[0] == 1));
    s.player = clamp(s.player + turn * p.paddle_speed, -room, room);
    const float goal = s.vx < 0.0f && s.x < 0.0f ? s.y : 0.0f;
    s.opponent = clamp(s.opponent + clamp(goal - s.opponent, -p.opponent_speed, p.opponent_speed), -room, room);

    const float before = s.x;
    s.x += s.vx;
    s.y += s.vy;
    if (s.y < -1.0f || s.y > 1.0f) {
      s.y = (s.y < 0.0f ? -2.0f : 2.0f) - s.y;
      s.vy = -s.vy;
    }
    reward[0] = 0.0f;
    if (s.x > -kPaddle && s.x < kPaddle) return false;

    const float side = s.x > 0.0f ? 1.0f : -1.0f, paddle = s.x > 0.0f ? s.player : s.opponent;
    const float offset = (s.y - paddle) / (half + kBall);
    if (before * side < kPaddle && offset >= -1.0f && offset <= 1.0f) {
      s.x = 2.0f * kPaddle * side - s.x;
      const float speed = s.vx * side * p.speedup;
      s.vx = -side * (speed < p.max_speed ? speed : p.max_speed);
      s.vy = clamp(s.vy + p.spin * offset, -p.max_speed, p.max_speed);
    } else if (s.x * side > 1.0f) {
      const bool lost = side > 0.0f;
      reward[0] = lost ? -1.0f : 1.0f;
      s.lost += lost;
      s.won += !lost;
      const bool over = s.lost >= p.points || s.won >= p.points;
      launch(s, p, rng, lost);
      return over;
    }
    return false;
  }

  FUGU_HD static bool valid(const State& s, const Params& p, bool over) {
    const float room = 1.0f - 0.5f * p.paddle_size;
    const int most = over ? p.points : p.points - 1;
    return between(s.player, -room, room) && between(s.opponent, -room, room) && between(s.x, -1, 1) && between(s.y, -1, 1) &&
           between(s.vx, -p.max_speed, p.max_speed) && between(s.vy, -p.max_speed, p.max_speed) && between(s.won, 0, most) &&
           between(s.lost, 0, most);
  }

  FUGU_HD static void observe(const State& s, const Params& p, int, Obs* row) {
    const float points = static_cast<float>(p.points);  // divided by, not multiplied with 1 / points: that may pass 1
    row->player = s.player;
    row->opponent = s.opponent;
    row->x = s.x;
    row->y = s.y;
    row->vx = s.vx / p.max_speed;
    row->vy = s.vy / p.max_speed;
    row->won = static_cast<float>(s.won) / points;
    row->lost = static_cast<float>(s.lost) / points;
  }

#ifndef __CUDACC_RTC__
  static constexpr int width = 240, height = 240;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::black);
    for (int y = 4; y < height; y += 16) canvas.rectangle(width / 2 - 1, static_cast<float>(y), 2, 8, colors::gray);
    const float scale = 0.5f * width, high = p.paddle_size * scale;
    const auto pixel = [&](float x) { return (x + 1.0f) * scale; };
    canvas.rectangle(pixel(kPaddle), pixel(s.player) - high / 2, 5, high, colors::green);
    canvas.rectangle(pixel(-kPaddle) - 5, pixel(s.opponent) - high / 2, 5, high, colors::orange);
    canvas.rectangle(pixel(s.x - kBall), pixel(s.y - kBall), 2 * kBall * scale, 2 * kBall * scale, colors::white);
    const float share = 0.4f * width / static_cast<float>(p.points);  // points as bars from the middle
    const float won = share * static_cast<float>(s.won), lost = share * static_cast<float>(s.lost);
    canvas.rectangle(width / 2 + 6, 6, won, 4, colors::green);
    canvas.rectangle(width / 2 - 6 - lost, 6, lost, 4, colors::orange);
  }
#endif

 private:
  FUGU_HD static void launch(State& s, const Params& p, Rng& rng, bool to_player) {
    s.x = 0.0f;
    s.y = rng.uniform(-0.5f, 0.5f);
    const float speed = p.serve < p.max_speed ? p.serve : p.max_speed;
    s.vx = to_player ? speed : -speed;
    s.vy = rng.uniform(-0.8f, 0.8f) * speed;
  }
};

}  // namespace fugu
