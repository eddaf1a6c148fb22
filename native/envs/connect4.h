// Four in a row on 7 columns and 6 rows, both players in one world: turns, action masks, self-play.
//
// The player to move (acting; the other one's row has mask=false) drops a stone into a column; who first has four in a row,
// column or diagonal wins. The end pays 1 to the winner and -1 to the loser, 0 to both on a full board; all other rewards are
// 0. Who begins is drawn at random in each episode. The observation is the board from the top row down: 0 empty, 1 mine, 2
// theirs. A column that is full is not offered by the action mask; who plays it all the same has lost.
// Optimum: the first player wins with perfect play. In self-play the mean return is 0 whatever the policy.
// Logs: score, 1 for a win, 0.5 for a draw, 0 for a loss; draw; illegal, 1 for the player who lost by a full column.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Connect4 {
  static constexpr const char* name = "connect4";
  static constexpr int agents = 2;
  static constexpr int time_limit = 0;
  static constexpr int kRows = 6, kColumns = 7, kCells = kRows * kColumns;

  struct Obs {
    uint8_t cell[kCells];
  };
  using Action = int64_t;  // the column

  static constexpr Field observation[] = {bytes("", kRows, kColumns, 2)};
  static constexpr Field action[] = {discrete("", kColumns)};

  struct Params {};

  enum Outcome : uint8_t { kGoesOn, kWon, kDrawn, kIllegal };

  struct State {
    uint64_t stones[agents];  // bit column * 7 + height; the seventh bit of a column stays 0, which keeps columns apart
    uint8_t cell[kCells];     // as agent 0 sees it
    uint8_t height[kColumns];
    uint8_t count, turn;
    uint8_t outcome, winner;
  };

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    s = State{};
    s.turn = static_cast<uint8_t>(rng.below(2));
  }

  FUGU_HD static bool step(State& s, const Params&, Rng&, const Action* action, float* reward) {
    const int player = s.turn, column = static_cast<int>(action[player]), height = s.height[column];
    s.turn = static_cast<uint8_t>(1 - player);
    reward[0] = reward[1] = 0.0f;
    if (height == kRows) {
      s.outcome = kIllegal;
      s.winner = static_cast<uint8_t>(1 - player);
    } else {
      s.stones[player] |= 1ull << (column * 7 + height);
      s.cell[(kRows - 1 - height) * kColumns + column] = static_cast<uint8_t>(1 + player);
      ++s.height[column];
      ++s.count;
      s.winner = static_cast<uint8_t>(player);
      s.outcome = four(s.stones[player]) ? kWon : s.count == kCells ? kDrawn : kGoesOn;
    }
    if (s.outcome == kWon || s.outcome == kIllegal) {
      reward[s.winner] = 1.0f;
      reward[1 - s.winner] = -1.0f;
    }
    return s.outcome != kGoesOn;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool over) {
    uint64_t others = s.stones[0] | s.stones[1];  // all but those on the board
    int count = 0;
    for (int column = 0; column < kColumns; ++column) {
      if (s.height[column] > kRows) return false;
      for (int row = 0; row < kRows; ++row) {
        const uint64_t bit = 1ull << (column * 7 + row);
        const bool first = s.stones[0] & bit, second = s.stones[1] & bit;
        const int cell = s.cell[(kRows - 1 - row) * kColumns + column];
        if ((first && second) || cell != first + 2 * second || (cell != 0) != (row < s.height[column])) return false;
        others &= ~bit;
        count += cell != 0;
      }
    }
    return others == 0 && s.count == count && s.turn < agents && s.winner < agents && s.outcome <= kIllegal &&
           (over || (s.outcome == kGoesOn && count < kCells));
  }

  FUGU_HD static bool acting(const State& s, int agent) { return s.turn == agent; }

  FUGU_HD static void action_mask(const State& s, const Params&, int, bool* mask) {
    for (int column = 0; column < kColumns; ++column) mask[column] = s.height[column] < kRows;
  }

  FUGU_HD static void observe(const State& s, const Params&, int agent, Obs* row) {
    if (agent == 0)
      memcpy(row->cell, s.cell, kCells);
    else  // 1 and 2 change places
      for (int i = 0; i < kCells; ++i) row->cell[i] = static_cast<uint8_t>((s.cell[i] << 1 | s.cell[i] >> 1) & 3);
  }

  static constexpr const char* logs[] = {"score", "draw", "illegal"};
  FUGU_HD static void log(const State& s, const Params&, int agent, float* values) {
    const bool decided = s.outcome == kWon || s.outcome == kIllegal;
    values[0] = !decided ? 0.5f : s.winner == agent ? 1.0f : 0.0f;
    values[1] = s.outcome == kDrawn;
    values[2] = s.outcome == kIllegal && s.winner != agent;
  }

#ifndef __CUDACC_RTC__
  static constexpr int width = 40 * kColumns, height = 40 * kRows;
  static void render(const State& s, const Params&, Canvas& canvas) {
    canvas.fill(colors::blue);
    for (int i = 0; i < kCells; ++i)
      canvas.disc(40.0f * static_cast<float>(i % kColumns) + 19.5f, 40.0f * static_cast<float>(i / kColumns) + 19.5f, 16,
                  s.cell[i] == 0 ? colors::white : s.cell[i] == 1 ? colors::red : colors::yellow);
  }
#endif

 private:
  FUGU_HD static bool four(uint64_t stones) {
    const int ways[] = {1, 7, 6, 8};  // column, row, both diagonals
    bool found = false;
    for (const int way : ways) {
      const uint64_t pairs = stones & (stones >> way);
      found |= (pairs & (pairs >> 2 * way)) != 0;
    }
    return found;
  }
};

}  // namespace fugu
