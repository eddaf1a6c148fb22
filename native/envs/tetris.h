// Falling pieces of four cells on a board of 10 x 20; full lines vanish.
//
// Pieces come from a shuffled bag of all seven (I O T S Z J L), shuffled anew when empty. A piece lies in a box: 4 x 4 for I, 2
// x 2 for O, 3 x 3 for the others; turning it turns the box clockwise. Unturned, I fills the second row of its box, the others
//   O XX   T .X.   S .XX   Z XX.   J X..   L ..X
//     XX     XXX     XX.     .XX     XXX     XXX
// A piece starts unturned in the uppermost lines, its box in the columns from 3 (O: from 4).
//
// Actions: 0 nothing, 1 left, 2 right, 3 turn clockwise (if that collides, one column further left, else one further right), 4
// soft drop (down one row), 5 hard drop (down as far as it goes, and locked). What would collide with wall or cells does not
// happen. Then, in every gravity'th step since the piece appeared, it falls one row. A piece that is to go down, by soft drop
// or gravity, and cannot is locked: its cells become part of the board, full lines vanish and what is above comes down, the
// next piece appears. It moves from the next step on.
//
// Observation: 215 floats: the board line by line from above, 1 locked, -1 the falling piece, 0 empty (200); one-hot of the
// falling piece (7) and of the next one (7), in the order above; steps since the piece appeared, modulo gravity, / gravity (1).
// Reward: 1, 3, 5, 8 for one to four lines at once, and drop_reward per row of soft or hard drop. The episode ends, with -1
// more, when the next piece collides where it appears, or when a piece is locked with a cell above the board.
#pragma once


#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

// Cells in a box (bit 4 * row + column) whose first `size` rows and columns turn clockwise: all four ways, 16 bits each.
FUGU_HD constexpr uint64_t tetris_turns(uint32_t cells, int size) {
  uint64_t out = 0;
  for (int turn = 0; turn < 4; ++turn) {
    out |= static_cast<uint64_t>(cells) << (16 * turn);
    uint32_t turned = 0;
    for (int r = 0; r < size; ++r)
      for (int c = 0; c < size; ++c)
        if (cells >> (4 * (size - 1 - c) + r) & 1u) turned |= 1u << (4 * r + c);
    cells = turned;
  }
  return out;
}

struct Tetris {
  static constexpr const char* name = "tetris";
  static constexpr int agents = 1;
  static constexpr int time_limit = 10000;

  static constexpr int kHigh = 20, kWide = 10, kKinds = 7;

  struct Obs {
    float board[kHigh * kWide], kinds[2 * kKinds], fall;  // kinds: of the falling piece, of the next
  };
  using Action = int64_t;
  static constexpr Field observation[] = {box("", kHigh * kWide + 2 * kKinds + 1, -1.0, 1.0)};
  static constexpr Field action[] = {discrete("", 6)};

  struct Params {
    int32_t gravity = 4;
    float drop_reward = 0.01f;
  };
  static constexpr Param<Params> params[] = {{"gravity", &Params::gravity, 1, 1000000},
                                             {"drop_reward", &Params::drop_reward, -1000.0, 1000.0}};

  // Line y is lines[y + 1]: 16 bits, of which 3 .. 12 are the board and the others wall. Above the board is one empty line,
  // below it are lines full of wall, so that the four lines of any box can be taken as one word.
  static constexpr int kLeft = 3, kLines = 1 + kHigh + 4;
  static constexpr uint16_t kWalls = 0xe007, kFull = 0xffff;

  struct State {
    uint16_t lines[kLines];
    int8_t x, y;  // of the box's upper left corner, x in bits of a line, y on the board
    uint8_t piece, next, turn, bag;  // bag: bit per kind that is still in it
    int32_t age, cleared, placed;
  };

  static constexpr const char* logs[] = {"lines", "pieces"};
  FUGU_HD static void log(const State& s, const Params&, int, float* values) {
    values[0] = static_cast<float>(s.cleared);
    values[1] = static_cast<float>(s.placed);
  }

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    for (int i = 0; i < kLines; ++i) s.lines[i] = i <= kHigh ? kWalls : kFull;
    s.cleared = s.placed = 0;
    s.bag = 0;
    s.next = draw(s, rng);
    appear(s, rng);
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng& rng, const Action* action, float* reward) {
    reward[0] = 0.0f;
    bool lock = false;
    switch (action[0]) {
      case 1: shift(s, -1, s.turn); break;
      case 2: shift(s, 1, s.turn); break;
      case 3: {
        const int turn = (s.turn + 1) & 3;
        if (!shift(s, 0, turn) && !shift(s, -1, turn)) shift(s, 1, turn);
        break;
      }
      case 4:
        lock = !lower(s);
        reward[0] = lock ? 0.0f : p.drop_reward;
        break;
      case 5: {
        int rows = 0;
        while (lower(s)) ++rows;
        reward[0] = p.drop_reward * static_cast<float>(rows);
        lock = true;
        break;
      }
      default: break;
    }
    if (!lock && ++s.age >= p.gravity) {
      s.age = 0;
      lock = !lower(s);
    }
    if (!lock) return false;
    const bool above = merge(s);
    const int lines = clear(s);
    reward[0] += static_cast<float>(lines == 4 ? 8 : lines > 0 ? 2 * lines - 1 : 0);
    s.cleared += lines;
    ++s.placed;
    const bool over = !appear(s, rng) || above;
    if (over) reward[0] -= 1.0f;
    return over;
  }

  FUGU_HD static bool valid(const State& s, const Params& p, bool over) {
    for (int i = 0; i < kLines; ++i)
      if ((s.lines[i] & kWalls) != kWalls || (i > kHigh && s.lines[i] != kFull)) return false;
    if (s.piece >= kKinds || s.next >= kKinds || s.turn > 3 || s.bag >= 1u << kKinds) return false;
    if (!between(s.x, 0, kLeft + kWide - 1) || !between(s.y, -1, kHigh - 1)) return false;
    if (!over && (s.lines[0] != kWalls || collides(s, s.x, s.y, s.turn))) return false;
    return between(s.age, 0, p.gravity - 1) && between(s.cleared, 0, kMany) && between(s.placed, 0, kMany);
  }

  FUGU_HD static void observe(const State& s, const Params& p, int, Obs* row) {
    for (int y = 0; y < kHigh; y += 2) {  // two lines at a time are whole fours of floats
      const uint32_t upper = (s.lines[y + 1] >> kLeft) & 0x3ffu, below = (s.lines[y + 2] >> kLeft) & 0x3ffu;
      unpack_bits<2 * kWide>(upper | below << kWide, row->board + y * kWide);
    }
    for (uint32_t rest = shape(s.piece, s.turn); rest; rest &= rest - 1) {
      const int bit = lowest_bit(rest), y = s.y + bit / 4;
      if (y >= 0) row->board[y * kWide + s.x - kLeft + bit % 4] = -1.0f;
    }
    unpack_bits<2 * kKinds>(1u << s.piece | 1u << (kKinds + s.next), row->kinds);
    row->fall = static_cast<float>(s.age) / static_cast<float>(p.gravity);
  }

#ifndef __CUDACC_RTC__
  static constexpr int width = 216, height = 260;  // 12 per cell
  static void render(const State& s, const Params&, Canvas& canvas) {
    constexpr Color kinds[kKinds] = {colors::teal, colors::yellow, colors::purple, colors::green, colors::red, colors::blue,
                                     colors::orange};
    const auto cell = [&](int x, int y, Color color) {
      canvas.rectangle(static_cast<float>(10 + 12 * x), static_cast<float>(10 + 12 * y), 11, 11, color);
    };
    canvas.fill(colors::gray);
    canvas.rectangle(9, 9, 12 * kWide + 1, 12 * kHigh + 1, colors::black);
    for (int y = 0; y < kHigh; ++y)
      for (int x = 0; x < kWide; ++x)
        if (s.lines[y + 1] >> (kLeft + x) & 1u) cell(x, y, colors::light);
    canvas.rectangle(147, 9, 61, 49, colors::black);  // where the next piece is shown
    for (int bit = 0; bit < 16; ++bit) {
      if (shape(s.piece, s.turn) >> bit & 1u && s.y + bit / 4 >= 0) cell(s.x - kLeft + bit % 4, s.y + bit / 4, kinds[s.piece]);
      if (shape(s.next, 0) >> bit & 1u)
        cell(12 + bit % 4, bit / 4 + (s.next == 0 ? 0 : 1), kinds[s.next]);
    }
  }
#endif

 private:
  // The cells of a piece in its box: bit 4 * row + column.
  FUGU_HD static uint32_t shape(int piece, int turn) {
    uint64_t turns = 0;
    switch (piece) {
      case 0: { constexpr uint64_t i = tetris_turns(0x00f0, 4); turns = i; break; }
      case 1: { constexpr uint64_t o = tetris_turns(0x0033, 2); turns = o; break; }
      case 2: { constexpr uint64_t t = tetris_turns(0x0072, 3); turns = t; break; }
      case 3: { constexpr uint64_t s = tetris_turns(0x0036, 3); turns = s; break; }
      case 4: { constexpr uint64_t z = tetris_turns(0x0063, 3); turns = z; break; }
      case 5: { constexpr uint64_t j = tetris_turns(0x0071, 3); turns = j; break; }
      default: { constexpr uint64_t l = tetris_turns(0x0074, 3); turns = l; break; }
    }
    return static_cast<uint32_t>(turns >> (16 * turn)) & 0xffffu;
  }

  // The same cells in four lines of 16 bits.
  FUGU_HD static uint64_t spread(uint32_t shape, int x) {
    const uint64_t cells = shape;
    return ((cells & 0xfu) | (cells & 0xf0u) << 12 | (cells & 0xf00u) << 24 | (cells & 0xf000u) << 36) << x;
  }

  FUGU_HD static bool collides(const State& s, int x, int y, int turn) {
    uint64_t lines;
    memcpy(&lines, s.lines + y + 1, sizeof lines);
    return (lines & spread(shape(s.piece, turn), x)) != 0;
  }

  FUGU_HD static bool shift(State& s, int columns, int turn) {
    if (collides(s, s.x + columns, s.y, turn)) return false;
    s.x = static_cast<int8_t>(s.x + columns);
    s.turn = static_cast<uint8_t>(turn);
    return true;
  }

  FUGU_HD static bool lower(State& s) {
    if (collides(s, s.x, s.y + 1, s.turn)) return false;
    ++s.y;
    return true;
  }

  FUGU_HD static bool merge(State& s) {  // true: a cell is above the board
    uint64_t lines;
    memcpy(&lines, s.lines + s.y + 1, sizeof lines);
    lines |= spread(shape(s.piece, s.turn), s.x);
    memcpy(s.lines + s.y + 1, &lines, sizeof lines);
    return s.lines[0] != kWalls;
  }

  FUGU_HD static int clear(State& s) {  // only the lines of the box can be full
    int count = 0;
    for (int i = s.y < 0 ? 1 : s.y + 1; i <= s.y + 4 && i <= kHigh; ++i) {
      if (s.lines[i] != kFull) continue;
      for (int j = i; j > 1; --j) s.lines[j] = s.lines[j - 1];
      s.lines[1] = kWalls;
      ++count;
    }
    return count;
  }

  FUGU_HD static uint8_t draw(State& s, Rng& rng) {
    if (s.bag == 0) s.bag = (1u << kKinds) - 1u;
    uint32_t count = 0;
    for (uint32_t rest = s.bag; rest; rest &= rest - 1) ++count;
    uint32_t rest = s.bag;
    for (uint32_t skip = rng.below(count); skip; --skip) rest &= rest - 1;
    const int kind = lowest_bit(rest);
    s.bag = static_cast<uint8_t>(s.bag & ~(1u << kind));
    return static_cast<uint8_t>(kind);
  }

  FUGU_HD static bool appear(State& s, Rng& rng) {  // false: there is no room
    s.piece = s.next;
    s.next = draw(s, rng);
    s.turn = 0;
    s.x = static_cast<int8_t>(kLeft + (s.piece == 1 ? 4 : 3));
    s.y = s.piece == 0 ? -1 : 0;
    s.age = 0;
    return !collides(s, s.x, s.y, 0);
  }
};

}  // namespace fugu
