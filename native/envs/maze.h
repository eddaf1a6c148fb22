// A new maze in every episode, of which the agent sees only what is near: exploration, generalisation, memory.
//
// The maze is a square of `size` x `size` fields (odd; an even size is made one less), walls around it, carved by a randomised
// depth-first search: between any two of its cells, the fields with odd coordinates, there is exactly one way. Start and goal
// are two different cells drawn at random. The observation is the 7 x 7 fields around the agent, who is in the middle: 0 floor,
// 1 wall, 2 goal, 3 outside the maze. Actions: 0 up, 1 right, 2 down, 3 left; a step into a wall does not move. Reaching the
// goal pays 1 and ends the episode; each step costs `step_cost` (0). The time limit is 300 steps; no way is longer than half of
// (size - 1)^2.
// Optimum: return 1 - step_cost * steps, in as many steps as the way is long; 1 with the default. Memory helps: the goal is not
// in sight most of the time. A uniformly random policy finds it in about 1 episode of 3.
// Logs: score, 1 if the goal was reached, else 0.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Maze {
  static constexpr const char* name = "maze";
  static constexpr int agents = 1;
  static constexpr int time_limit = 300;
  static constexpr int kMaxSize = 21, kView = 7, kReach = kView / 2;

  struct Obs {
    uint8_t field[kView * kView];
  };
  using Action = int64_t;  // direction

  static constexpr Field observation[] = {bytes("", kView, kView, 3)};
  static constexpr Field action[] = {discrete("", 4)};

  struct Params {
    int32_t size = 11;
    float step_cost = 0.0f;
  };
  static constexpr Param<Params> params[] = {{"size", &Params::size, 5, kMaxSize}, {"step_cost", &Params::step_cost, 0, 1}};

  struct State {
    uint32_t wall[kMaxSize + 2 * kReach];  // [y + kReach], bit x + kReach: a margin as wide as the view reaches, all walls
    int8_t x, y, goal_x, goal_y;
  };

  FUGU_HD static int side(const Params& p) { return (p.size - 1) | 1; }

  FUGU_HD static void reset(State& s, const Params& p, Rng& rng) {
    const int cells = (side(p) - 1) / 2;  // along one side
    carve(s, cells, rng);
    const uint32_t count = static_cast<uint32_t>(cells * cells), start = rng.below(count);
    const uint32_t goal = (start + 1 + rng.below(count - 1)) % count;
    const uint32_t wide = static_cast<uint32_t>(cells);
    s.x = static_cast<int8_t>(2 * (start % wide) + 1);
    s.y = static_cast<int8_t>(2 * (start / wide) + 1);
    s.goal_x = static_cast<int8_t>(2 * (goal % wide) + 1);
    s.goal_y = static_cast<int8_t>(2 * (goal / wide) + 1);
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng&, const Action* action, float* reward) {
    const int way = static_cast<int>(action[0]);
    const int free = !is_wall(s, s.x + step_x(way), s.y + step_y(way));  // a factor: nobody could guess a branch
    const int x = s.x + free * step_x(way), y = s.y + free * step_y(way);
    s.x = static_cast<int8_t>(x);
    s.y = static_cast<int8_t>(y);
    const bool there = ((x ^ s.goal_x) | (y ^ s.goal_y)) == 0;
    reward[0] = (there ? 1.0f : 0.0f) - p.step_cost;
    return there;
  }

  FUGU_HD static bool valid(const State& s, const Params& p, bool) {
    const int last = side(p) - 2;  // walls are around the fields from 1 to here
    const uint32_t fields = ((1u << last) - 1) << (kReach + 1);
    for (int y = 0; y < kMaxSize + 2 * kReach; ++y)
      if (~s.wall[y] & (between(y - kReach, 1, last) ? ~fields : ~0u)) return false;
    return between(s.x, 1, last) && between(s.y, 1, last) && between(s.goal_x, 1, last) && between(s.goal_y, 1, last);
  }

  FUGU_HD static void observe(const State& s, const Params& p, int, Obs* row) {
    const int size = side(p), x = s.x, top = s.y;
    const uint32_t inside = ((1u << size) - 1) << kReach;
    const uint64_t ones = 0x0101010101010101ull, beside = 2 * spread(~inside >> x);  // outside, in the lines of the maze
    uint64_t fields = 0;
    for (int line = 0; line < kView; ++line) {
      const int y = top + line;  // with the margin
      const bool off = y < kReach || y >= size + kReach;
      const uint64_t above = fields;
      fields = spread(s.wall[y] >> x) + (off ? 2 * ones : beside);
      // Eight bytes at once: the eighth is overwritten by the next line; the last line takes the end of the one above along.
      if (line == kView - 1) fields = fields << 8 | (above >> 48 & 0xff);
      memcpy(row->field + line * kView - (line == kView - 1), &fields, 8);
    }
    const int right = s.goal_x - x + kReach, down = s.goal_y - top + kReach;
    const bool sees = right >= 0 && right < kView && down >= 0 && down < kView;
    // Without a branch: where the goal is out of sight, the floor under the agent is written once more.
    row->field[sees ? down * kView + right : kReach * kView + kReach] = sees ? 2 : 0;
  }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params&, int, float* values) {
    values[0] = s.x == s.goal_x && s.y == s.goal_y ? 1.0f : 0.0f;
  }

  // The whole maze; what the agent sees is lighter.
#ifndef __CUDACC_RTC__
  static constexpr int width = 12 * kMaxSize, height = 12 * kMaxSize;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::white);
    const int size = side(p);
    const float unit = static_cast<float>(width) / static_cast<float>(size);
    for (int y = 0; y < size; ++y)
      for (int x = 0; x < size; ++x) {
        const bool near = x >= s.x - kReach && x <= s.x + kReach && y >= s.y - kReach && y <= s.y + kReach;
        const Color wall = near ? Color{70, 78, 90} : colors::black, floor = near ? colors::white : Color{196, 200, 206};
        const Color color = is_wall(s, x, y) ? wall : floor;
        canvas.rectangle(unit * static_cast<float>(x), unit * static_cast<float>(y), unit, unit, color);
      }
    canvas.rectangle(unit * s.goal_x + 2, unit * s.goal_y + 2, unit - 4, unit - 4, colors::orange);
    canvas.disc(unit * (s.x + 0.5f) - 0.5f, unit * (s.y + 0.5f) - 0.5f, 0.36f * unit, colors::teal);
  }
#endif

 private:
  FUGU_HD static int step_x(int way) { return (way & 1) * (2 - way); }        // 0, 1, 0, -1
  FUGU_HD static int step_y(int way) { return ((way & 1) - 1) * (1 - way); }  // -1, 0, 1, 0
  FUGU_HD static bool is_wall(const State& s, int x, int y) { return s.wall[y + kReach] >> (x + kReach) & 1; }

  // Bit i of eight as 0 or 1 in byte i.
  FUGU_HD static uint64_t spread(uint32_t bits) {
    const uint64_t each = (bits & 0xff) * 0x0101010101010101ull & 0x8040201008040201ull;
    return (each + 0x7f7f7f7f7f7f7f7full) >> 7 & 0x0101010101010101ull;
  }

  FUGU_HD static void carve(State& s, int cells, Rng& rng) {
    constexpr int kMost = (kMaxSize - 1) / 2;
    for (uint32_t& row : s.wall) row = ~0u;
    uint8_t path[kMost * kMost];  // the cells from the first to the present one
    int x = static_cast<int>(rng.below(static_cast<uint32_t>(cells)));
    int y = static_cast<int>(rng.below(static_cast<uint32_t>(cells)));
    int depth = 0;
    open(s, 2 * x + 1, 2 * y + 1);
    while (true) {
      int ways[4], count = 0;
      for (int way = 0; way < 4; ++way) {
        const int to_x = x + step_x(way), to_y = y + step_y(way);
        const bool free = to_x >= 0 && to_y >= 0 && to_x < cells && to_y < cells && is_wall(s, 2 * to_x + 1, 2 * to_y + 1);
        ways[count] = way;
        count += free;
      }
      if (count > 0) {
        const int way = ways[count > 1 ? rng.below(static_cast<uint32_t>(count)) : 0];
        path[depth++] = static_cast<uint8_t>(y * kMost + x);
        open(s, 2 * x + 1 + step_x(way), 2 * y + 1 + step_y(way));
        x += step_x(way);
        y += step_y(way);
        open(s, 2 * x + 1, 2 * y + 1);
      } else {
        if (depth == 0) return;
        --depth;
        x = path[depth] % kMost;
        y = path[depth] / kMost;
      }
    }
  }
  FUGU_HD static void open(State& s, int x, int y) { s.wall[y + kReach] &= ~(1u << (x + kReach)); }
};

}  // namespace fugu
