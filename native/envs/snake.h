// Eight snakes on a board of 40 x 40 cells, surrounded by walls, with a constant number of pieces of food.
//
// In each step the agents that have ended before start anew, then the others move one after another, first agent turn % 8 in
// the turn'th step of the world, so that nobody is always first. A move
//   turns the head to the direction chosen; the direction back into its own neck, for a snake longer than one cell, counts as
//   straight on;
//   ends the episode if the next cell is wall or body, its own or another's. Its own last cell is free, unless it is growing
//   now. The body stays on the board, as an obstacle, until the agent starts anew in the next step;
//   otherwise moves the head there. Food makes the snake one cell longer at once (up to max_length), and a new piece of food
//   appears in a random empty cell.
// A snake starts as one cell, in a random empty cell, and grows by a cell per step until it has start_length.
//
// Observation: 11 x 11 bytes, the cells around the head, which is in the middle: 0 empty, 1 food, 2 own body, 3 another's body,
// 4 wall. Actions: 0 up, 1 right, 2 down, 3 left. Reward: 1 for food, -1 for death. Episodes end by death, one by one.
#pragma once


#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Snake {
  static constexpr const char* name = "snake";
  static constexpr int agents = 8;
  static constexpr bool independent = true;
  static constexpr int time_limit = 1000;

  static constexpr int kSize = 40, kSight = 5, kView = 2 * kSight + 1;

  struct Obs {
    uint8_t cells[kView * kView];
  };
  using Action = int64_t;
  static constexpr Field observation[] = {bytes("", kView, kView, 4)};
  static constexpr Field action[] = {discrete("", 4)};

  struct Params {
    int32_t food = 32, start_length = 3, max_length = 64;
  };
  // Snakes of 8 x 128 cells and 512 pieces of food leave room on 1600 cells.
  static constexpr Param<Params> params[] = {
      {"food", &Params::food, 0, 512},
      {"start_length", &Params::start_length, 1, 128},
      {"max_length", &Params::max_length, 1, 128}};

  // The board has a wall as thick as one can see, so that what an agent sees is always on it. A cell of a body holds its owner
  // and the direction to the next cell towards the head: the body is a list that lies on the board.
  static constexpr int kStride = kSize + 2 * kSight, kCells = kStride * kStride;
  static constexpr uint8_t kEmpty = 0, kFood = 1, kWall = 4, kBody = 128;

  struct State {
    uint16_t head[agents], tail[agents], length[agents], growth[agents], eaten[agents];
    uint8_t direction[agents];
    uint32_t turn;
    uint8_t board[kCells + 16];  // rows are read 16 at a time
  };

  static constexpr const char* logs[] = {"length", "food"};
  FUGU_HD static void log(const State& s, const Params&, int agent, float* values) {
    values[0] = static_cast<float>(s.length[agent]);
    values[1] = static_cast<float>(s.eaten[agent]);
  }

  FUGU_HD static void reset(State& s, const Params& p, Rng& rng) {
    for (uint8_t& cell : s.board) cell = kWall;
    for (int y = kSight; y < kSight + kSize; ++y)
      for (int x = kSight; x < kSight + kSize; ++x) s.board[y * kStride + x] = kEmpty;
    s.turn = 0;
    for (int a = 0; a < agents; ++a) place(s, p, rng, a);
    for (int i = 0; i < p.food; ++i) s.board[empty_cell(s, rng)] = kFood;
  }

  FUGU_HD static void step(State& s, const Params& p, Rng& rng, const Action* action, const bool* fresh, float* reward,
                           bool* terminated) {
    for (int a = 0; a < agents; ++a)
      if (fresh[a]) {
        lift(s, a);
        place(s, p, rng, a);
      }
    const int start = static_cast<int>(s.turn++ % agents);
    for (int i = 0; i < agents; ++i) {
      const int a = (start + i) % agents;
      if (!fresh[a]) terminated[a] = move(s, p, rng, a, static_cast<int>(action[a]), reward[a]);
    }
  }

  FUGU_HD static bool valid(const State& s, const Params& p, const bool*) {
    int food = 0, own[agents] = {};
    for (int at = 0; at < kCells + 16; ++at) {
      const int x = at % kStride - kSight, y = at / kStride - kSight, cell = s.board[at];
      if (!between(x, 0, kSize - 1) || !between(y, 0, kSize - 1)) {
        if (cell != kWall) return false;
      } else if (cell >= kBody && cell < kBody + 4 * agents) {
        ++own[(cell - kBody) / 4];
      } else if (cell != kEmpty && cell != kFood) {
        return false;
      } else {
        food += cell == kFood;
      }
    }
    for (int a = 0; a < agents; ++a)
      if (own[a] != s.length[a] || s.direction[a] > 3 || s.length[a] + s.growth[a] > p.max_length || !is_list(s, a)) return false;
    return food == p.food;  // with snakes no longer than allowed there are empty cells
  }

  FUGU_HD static void observe(const State& s, const Params&, int agent, Obs* row) {
    const uint8_t own = body(agent, 0);
    const uint8_t* from = s.board + s.head[agent] - kSight * kStride - kSight;
    uint8_t cells[kView * kView + 16];  // 16 at a time, the next row over what is too much
    for (int y = 0; y < kView; ++y, from += kStride) {
      uint8_t* to = cells + y * kView;
      uint8_t seen[16];
      memcpy(seen, from, 16);
      for (int x = 0; x < 16; ++x) {
        const uint8_t cell = seen[x];
        const uint8_t someone = static_cast<uint8_t>((cell & 0xfc) == own ? 2 : 3);
        seen[x] = cell >= kBody ? someone : cell;
      }
      memcpy(to, seen, 16);
    }
    memcpy(row->cells, cells, sizeof row->cells);
  }

#ifndef __CUDACC_RTC__
  static constexpr int width = 252, height = 252;  // 6 per cell, and a wall of one cell around
  static void render(const State& s, const Params&, Canvas& canvas) {
    constexpr Color owners[agents] = {colors::green,  colors::blue, colors::orange,    colors::purple,
                                      colors::yellow, colors::teal, Color{220, 120, 170}, Color{120, 170, 220}};
    canvas.fill(colors::gray);
    canvas.rectangle(6, 6, 6 * kSize, 6 * kSize, colors::black);
    for (int y = 0; y < kSize; ++y)
      for (int x = 0; x < kSize; ++x) {
        const int at = (y + kSight) * kStride + x + kSight;
        const uint8_t cell = s.board[at];
        const float left = static_cast<float>(6 * (x + 1)), top = static_cast<float>(6 * (y + 1));
        if (cell == kFood) canvas.rectangle(left + 1, top + 1, 4, 4, colors::red);
        if (cell < kBody) continue;
        const int owner = (cell - kBody) / 4;
        canvas.rectangle(left, top, 6, 6, owners[owner]);
        if (at == s.head[owner]) canvas.rectangle(left + 2, top + 2, 2, 2, colors::white);
      }
  }
#endif

 private:
  FUGU_HD static uint8_t body(int agent, int direction) { return static_cast<uint8_t>(kBody + 4 * agent + direction); }

  FUGU_HD static int ahead(int at, int direction) {
    const int along = direction < 2 ? 1 : -1;  // up, right, down, left
    return at + (direction & 1 ? along : -along * kStride);
  }

  FUGU_HD static bool move(State& s, const Params& p, Rng& rng, int a, int direction, float& reward) {
    if (s.length[a] > 1 && (direction ^ 2) == s.direction[a]) direction = s.direction[a];
    s.direction[a] = static_cast<uint8_t>(direction);
    const int head = s.head[a], tail = s.tail[a], next = ahead(head, direction);
    const uint8_t cell = s.board[next];
    if (cell > kFood && (next != tail || s.growth[a] > 0)) {
      reward = -1.0f;
      return true;
    }
    const bool eats = cell == kFood;
    if (eats) {
      ++s.eaten[a];
      s.growth[a] = static_cast<uint16_t>(s.growth[a] + (s.length[a] + s.growth[a] < p.max_length));
    }
    s.board[head] = body(a, direction);
    if (s.growth[a] > 0) {
      --s.growth[a];
      ++s.length[a];
    } else {
      s.tail[a] = static_cast<uint16_t>(ahead(tail, s.board[tail] & 3));
      s.board[tail] = kEmpty;
    }
    s.head[a] = static_cast<uint16_t>(next);
    s.board[next] = body(a, direction);
    if (eats) s.board[empty_cell(s, rng)] = kFood;
    reward = eats ? 1.0f : 0.0f;
    return false;
  }

  FUGU_HD static void place(State& s, const Params& p, Rng& rng, int a) {
    const int at = empty_cell(s, rng);
    s.board[at] = body(a, 0);
    s.head[a] = s.tail[a] = static_cast<uint16_t>(at);
    s.direction[a] = 0;
    s.length[a] = 1;
    s.growth[a] = static_cast<uint16_t>((p.start_length < p.max_length ? p.start_length : p.max_length) - 1);
    s.eaten[a] = 0;
  }

  // Whether the body is one line of `length` cells from tail to head.
  FUGU_HD static bool is_list(const State& s, int a) {
    bool passed[kCells] = {};
    int at = s.tail[a], last = -1;
    for (int i = 0; i < s.length[a]; ++i) {
      if (at < 0 || at >= kCells || passed[at] || (s.board[at] & 0xfc) != body(a, 0)) return false;
      passed[at] = true;
      last = at;
      at = ahead(at, s.board[at] & 3);
    }
    return last == s.head[a];
  }

  FUGU_HD static void lift(State& s, int a) {  // takes the body off the board
    int at = s.tail[a];
    for (int i = 0; i < s.length[a]; ++i) {
      const int next = ahead(at, s.board[at] & 3);
      s.board[at] = kEmpty;
      at = next;
    }
  }

  FUGU_HD static int empty_cell(const State& s, Rng& rng) {
    int at;
    do {
      const int cell = static_cast<int>(rng.below(kSize * kSize));
      at = (cell / kSize + kSight) * kStride + cell % kSize + kSight;
    } while (s.board[at] != kEmpty);
    return at;
  }
};

}  // namespace fugu
