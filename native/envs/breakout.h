// A ball, a paddle and a wall of 6 x 18 bricks to be knocked out.
//
// The field is 180 wide and 160 high, y pointing down. Bricks are 10 x 5 and fill y = 20 .. 50. The paddle's top is at y = 150.
// The ball is 4 x 4. A step is `frameskip` frames with the same action. Each frame
//   moves the paddle by paddle_speed, not beyond the field;
//   moves the ball in x: if the middle of its leading edge is then in the wall of the field or in a brick, it goes back to
//   where it was and its x velocity is reversed; a brick so hit is gone;
//   moves the ball in y, with the same rule (ceiling and bricks);
//   bounces the ball off the paddle: if it moves down, its lower edge passes y = 150 in this frame and its middle is no further
//   than paddle_width / 2 + 2 from the paddle's middle, it is mirrored there and flies up again, faster by the factor speedup
//   (up to max_speed). Its direction is the old one turned by where it hit: with h = distance from the paddle's middle / the
//   reach above, sideways share sin = old sin + 0.5 h, kept within [-0.8, 0.8] and away from [-0.1, 0.1], so that no ball goes
//   straight up and down for ever.
// A ball that falls below y = 160 is lost. The next one, and the first, starts at y = 90, x = 90 +- 45, downwards with a
// sideways share within +-0.6, at speed ball_speed; the paddle goes to the middle, from where it can reach every such ball.
//
// Observation: 116 floats: paddle's x, ball's x and y (0 .. 1 over the field), ball's velocity in x and y / max_speed (-1 ..
// 1), balls left / balls, share of bricks left, speed / max_speed; then the bricks, row by row from above, 1 there and 0 gone.
// Actions: 0 stay, 1 left, 2 right. Reward: 1 per brick. The episode ends when the last ball is lost or the last brick gone.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Breakout {
  static constexpr const char* name = "breakout";
  static constexpr int agents = 1;
  static constexpr int time_limit = 10000;

  static constexpr int kRows = 6, kColumns = 18, kBricks = kRows * kColumns;
  static constexpr float kWide = 180.0f, kHigh = 160.0f, kBrickWide = 10.0f, kBrickHigh = 5.0f, kTop = 20.0f;
  static constexpr float kPaddle = 150.0f, kBall = 2.0f;  // the paddle's top; half the ball's size

  struct Obs {
    float paddle, x, y, vx, vy, balls, bricks_left, speed;
    float bricks[kBricks];
  };
  using Action = int64_t;
  static constexpr Field observation[] = {box("", 8 + kBricks, -1.0, 1.0)};
  static constexpr Field action[] = {discrete("", 3)};

  struct Params {
    float paddle_width = 24.0f, paddle_speed = 2.0f, ball_speed = 1.5f, max_speed = 2.5f, speedup = 1.02f;
    int32_t balls = 3, frameskip = 4;
  };
  // A frame moves the ball by less than a brick's height: it passes through nothing.
  static constexpr Param<Params> params[] = {
      {"paddle_width", &Params::paddle_width, 1.0, 180.0}, {"paddle_speed", &Params::paddle_speed, 0.0, 180.0},
      {"ball_speed", &Params::ball_speed, 0.1, 4.5}, {"max_speed", &Params::max_speed, 0.1, 4.5},
      {"speedup", &Params::speedup, 1.0, 2.0}, {"balls", &Params::balls, 1, 1000}, {"frameskip", &Params::frameskip, 1, 1000}};

  struct State {
    float paddle, x, y, vx, vy, speed;  // middles
    int32_t balls, left;
    uint32_t bricks[kRows];  // bit: column
  };

  static constexpr const char* logs[] = {"score", "cleared"};
  FUGU_HD static void log(const State& s, const Params&, int, float* values) {
    values[0] = static_cast<float>(kBricks - s.left);
    values[1] = s.left == 0 ? 1.0f : 0.0f;
  }

  FUGU_HD static void reset(State& s, const Params& p, Rng& rng) {
    for (uint32_t& row : s.bricks) row = (1u << kColumns) - 1u;
    s.left = kBricks;
    s.balls = p.balls;
    launch(s, p, rng);
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng& rng, const Action* action, float* reward) {
    const int32_t before = s.left;
    const float half = 0.5f * p.paddle_width;
    const float turn = p.paddle_speed * static_cast<float>(static_cast<int>(action[0] == 2) - static_cast<int>(action[0] == 1));
    bool over = false;
    for (int frame = 0; frame < p.frameskip && !over; ++frame) {
      s.paddle = clamp(s.paddle + turn, half, kWide - half);
      move(s);
      if (s.y > kPaddle - kBall) over = bounce_or_lose(s, p, rng);
      over |= s.left == 0;
    }
    reward[0] = static_cast<float>(before - s.left);
    return over;
  }

  FUGU_HD static bool valid(const State& s, const Params& p, bool over) {
    int left = 0;
    for (uint32_t row : s.bricks) {
      if (row >> kColumns != 0) return false;
      for (; row != 0; row &= row - 1) ++left;
    }
    const float half = 0.5f * p.paddle_width, slowest = p.ball_speed < p.max_speed ? p.ball_speed : p.max_speed;
    return s.left == left && between(s.left, over ? 0 : 1, kBricks) && between(s.balls, over ? 0 : 1, p.balls) &&
           between(s.paddle, half, kWide - half) && between(s.x, kBall, kWide - kBall) && between(s.y, kBall, kHigh + p.max_speed) &&
           between(s.speed, slowest, p.max_speed) && between(s.vx, -s.speed, s.speed) && between(s.vy, -s.speed, s.speed);
  }

  FUGU_HD static void observe(const State& s, const Params& p, int, Obs* row) {
    row->paddle = s.paddle * (1.0f / kWide);
    row->x = s.x * (1.0f / kWide);
    row->y = clamp(s.y * (1.0f / kHigh), 0.0f, 1.0f);
    row->vx = s.vx / p.max_speed;
    row->vy = s.vy / p.max_speed;
    row->balls = static_cast<float>(s.balls) / static_cast<float>(p.balls);
    row->bricks_left = static_cast<float>(s.left) / kBricks;
    row->speed = s.speed / p.max_speed;
    for (int r = 0; r < kRows; ++r) unpack_bits<kColumns>(s.bricks[r], row->bricks + r * kColumns);
  }

#ifndef __CUDACC_RTC__
  static constexpr int width = 360, height = 320;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    constexpr Color rows[kRows] = {colors::red, colors::orange, colors::yellow, colors::green, colors::blue, colors::purple};
    canvas.fill(colors::black);
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kColumns; ++c)
        if (s.bricks[r] >> c & 1u)
          canvas.rectangle(2 * kBrickWide * static_cast<float>(c) + 1, 2 * (kTop + kBrickHigh * static_cast<float>(r)) + 1,
                           2 * kBrickWide - 2, 2 * kBrickHigh - 2, rows[r]);
    canvas.rectangle(2 * s.paddle - p.paddle_width, 2 * kPaddle, 2 * p.paddle_width, 6, colors::teal);
    canvas.rectangle(2 * (s.x - kBall), 2 * (s.y - kBall), 4 * kBall, 4 * kBall, colors::white);
    for (int ball = 0; ball < s.balls; ++ball) canvas.disc(12.0f + 14.0f * static_cast<float>(ball), 12, 4, colors::gray);
  }
#endif

 private:
  FUGU_HD static void launch(State& s, const Params& p, Rng& rng) {
    s.paddle = 0.5f * kWide;
    s.x = s.paddle + rng.uniform(-45.0f, 45.0f);
    s.y = 90.0f;
    s.speed = p.ball_speed < p.max_speed ? p.ball_speed : p.max_speed;
    aim(s, rng.uniform(-0.6f, 0.6f), 1.0f);
  }

  // Flies with the sideways share `sine`, up (way = -1) or down (1).
  FUGU_HD static void aim(State& s, float sine, float way) {
    s.vx = s.speed * sine;
    s.vy = s.speed * way * sqrtf(1.0f - sine * sine);
  }

  FUGU_HD static void move(State& s) {
    const float x = s.x, y = s.y;
    s.x = x + s.vx;
    const float side = s.x + (s.vx > 0.0f ? kBall : -kBall);
    const bool beside = y >= kTop && y < kTop + kBrickHigh * kRows;
    if (side <= 0.0f || side >= kWide || (beside && knock(s, side, y))) {
      s.x = x;
      s.vx = -s.vx;
    }
    s.y = y + s.vy;
    const float end = s.y + (s.vy > 0.0f ? kBall : -kBall);
    const bool within = end >= kTop && end < kTop + kBrickHigh * kRows;
    if (end <= 0.0f || (within && knock(s, s.x, end))) {
      s.y = y;
      s.vy = -s.vy;
    }
  }

  // Whether there is a brick at this point, within the rows of bricks and the field; it is gone afterwards.
  FUGU_HD static bool knock(State& s, float x, float y) {
    const int row = static_cast<int>((y - kTop) * (1.0f / kBrickHigh)), column = static_cast<int>(x * (1.0f / kBrickWide));
    const uint32_t bit = 1u << column;
    if (row >= kRows || !(s.bricks[row] & bit)) return false;
    s.bricks[row] &= ~bit;
    --s.left;
    return true;
  }

  // For a ball whose lower edge is below the paddle's top. True: that was the last one.
  FUGU_HD static bool bounce_or_lose(State& s, const Params& p, Rng& rng) {
    if (s.y > kHigh) {
      if (--s.balls <= 0) return true;
      launch(s, p, rng);
      return false;
    }
    const float offset = (s.x - s.paddle) / (0.5f * p.paddle_width + kBall);
    if (s.vy > 0.0f && s.y - s.vy <= kPaddle - kBall && offset >= -1.0f && offset <= 1.0f) {
      const float old = s.vx / s.speed;
      float sine = clamp(old + 0.5f * offset, -0.8f, 0.8f);
      if (sine > -0.1f && sine < 0.1f) sine = sine < 0.0f || (sine == 0.0f && old < 0.0f) ? -0.1f : 0.1f;
      s.speed = s.speed * p.speedup < p.max_speed ? s.speed * p.speedup : p.max_speed;
      s.y = 2.0f * (kPaddle - kBall) - s.y;
      aim(s, sine, -1.0f);
    }
    return false;
  }
};

}  // namespace fugu
