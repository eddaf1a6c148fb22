// Level-based foraging (Albrecht & Ramamoorthy 2013, arXiv:1506.01170): agents gather food that takes several of them to lift.
//
// Two to four players with levels move on a board of size x size cells on which food lies, each piece with a level of its own. A piece is
// taken when the players beside it (in the four directions) that choose to load have levels that sum to its own or more. All
// players are paid its level, as a share of the levels of all food: so an episode returns 1 if everything is gathered, to
// everybody. It ends then, or after max_steps. With together = 1 every piece takes all players at once.
//
// Food lies off the border and no two pieces touch, so that each can be reached from all four sides. Two players that want the
// same cell both stay; food and players that do not move are in the way.
//
// There are always four agents; those beyond `players` are absent: masked, and all they see is zero.
// Observation: a Dict of `observation`, for actors: own row, column and level; of every other agent and of every piece of food how
// many rows and columns it is away and its level, all zero where it is absent or further than `sight` rows or columns away (0: one
// sees everything); and `state`, for a critic alone: row, column and level of all agents and all food. Rows and columns are
// in units of size, levels in quarters. Actions: 0 stay, 1 up, 2 right, 3 down, 4 left, 5 load.
// Logs: score, the share of the food's levels that was gathered.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Foraging {
  static constexpr const char* name = "foraging";
  static constexpr int agents = 4;
  static constexpr int time_limit = 50;
  static constexpr int kFood = 4, kThings = agents + kFood, kActions = 6, kLoad = 5;
  static constexpr int kMaxSize = 10, kMaxLevel = 3;

  struct Obs {
    float observation[3 * kThings];
    float state[3 * kThings];
  };
  using Action = int64_t;

  static constexpr Field observation[] = {box("observation", 3 * kThings, -1.0, agents * kMaxLevel * 0.25),
                                          box("state", 3 * kThings, 0.0, agents * kMaxLevel * 0.25)};
  static constexpr Field action[] = {discrete("", kActions)};

  struct Params {
    int32_t players = 2, size = 6, food = 2, max_level = 2, sight = 0, together = 0;
  };
  static constexpr Param<Params> params[] = {
      {"players", &Params::players, 2, agents}, {"size", &Params::size, 5, kMaxSize},         {"food", &Params::food, 1, kFood},
      {"max_level", &Params::max_level, 1, kMaxLevel}, {"sight", &Params::sight, 0, kMaxSize}, {"together", &Params::together, 0, 1}};

  // Something on the board; level 0: it is not there (any more).
  struct Thing {
    int8_t row, column, level, loading;
  };
  struct State {
    Thing thing[kThings];  // the agents, then the food
    int32_t total;         // levels of all food at the start
    int32_t gathered;
  };

  FUGU_HD static void reset(State& s, const Params& p, Rng& rng) {
    int strength = 0;
    for (Thing& thing : s.thing) thing = {0, 0, 0, 0};
    for (int i = 0; i < p.players; ++i) strength += s.thing[i].level = level(rng, p.max_level);
    s.total = s.gathered = 0;
    for (int i = agents; i < agents + p.food; ++i) {
      // The first piece always finds a place; where a board is too small for the others, there are fewer.
      for (int attempt = 0; attempt < 20 && s.thing[i].level == 0; ++attempt) {
        const int8_t row = inside(rng, p.size), column = inside(rng, p.size);
        if (near_food(s, row, column)) continue;
        s.thing[i] = {row, column, p.together ? static_cast<int8_t>(strength) : level(rng, strength), 0};
        s.total += s.thing[i].level;
      }
    }
    for (int i = 0; i < p.players; ++i) {
      const int cells = p.size * p.size, from = static_cast<int>(rng.below(static_cast<uint32_t>(cells)));
      for (int k = 0; k < cells; ++k) {  // the first free cell from a random one on
        const int cell = (from + k) % cells;
        s.thing[i].row = static_cast<int8_t>(cell / p.size);
        s.thing[i].column = static_cast<int8_t>(cell % p.size);
        if (!taken(s, i)) break;
      }
    }
  }

  FUGU_HD static bool step(State& s, const Params& p, Rng&, const Action* action, float* reward) {
    const int gathered = load(s, action);
    move(s, p, action);
    s.gathered += gathered;
    for (int a = 0; a < agents; ++a) reward[a] = static_cast<float>(gathered) / static_cast<float>(s.total);
    return s.gathered == s.total;
  }

  FUGU_HD static bool valid(const State& s, const Params& p, bool over) {
    int strength = 0, left = 0;
    for (int i = 0; i < kThings; ++i) {
      const Thing& thing = s.thing[i];
      if (!between(thing.row, 0, p.size - 1) || !between(thing.column, 0, p.size - 1) || !between(thing.loading, 0, 1)) return false;
      const bool player = i < p.players, food = i >= agents && i < agents + p.food;
      if (!between(thing.level, player, player ? p.max_level : food ? strength : 0)) return false;
      (i < agents ? strength : left) += thing.level;
    }
    return between(s.total, 1, kFood * strength) && between(s.gathered, 0, over ? s.total : s.total - 1) && s.total - s.gathered == left;
  }

  FUGU_HD static bool acting(const State& s, int agent) { return s.thing[agent].level > 0; }

  FUGU_HD static void observe(const State& s, const Params& p, int agent, Obs* row) {
    const Thing& self = s.thing[agent];
    const float unit = 1.0f / static_cast<float>(p.size);
    if (self.level == 0) {
      memset(row, 0, sizeof *row);
      return;
    }
    float* own = row->observation;
    put(own, static_cast<float>(self.row) * unit, static_cast<float>(self.column) * unit, self.level);
    float* seen = own + 3;
    for (int i = 0; i < kThings; ++i) {
      const Thing& thing = s.thing[i];
      const bool there = thing.level > 0;
      float* absolute = row->state + 3 * i;
      put(absolute, there ? static_cast<float>(thing.row) * unit : 0.0f, there ? static_cast<float>(thing.column) * unit : 0.0f,
          thing.level);
      if (i == agent) continue;
      const int rows = thing.row - self.row, columns = thing.column - self.column;
      const bool visible = there && (p.sight == 0 || (distance(rows) <= p.sight && distance(columns) <= p.sight));
      put(seen, visible ? static_cast<float>(rows) * unit : 0.0f, visible ? static_cast<float>(columns) * unit : 0.0f,
          visible ? thing.level : static_cast<int8_t>(0));
      seen += 3;
    }
  }

  static constexpr const char* logs[] = {"score"};
  FUGU_HD static void log(const State& s, const Params&, int, float* values) {
    values[0] = static_cast<float>(s.gathered) / static_cast<float>(s.total);
  }

  // Agents are discs, blue and framed in red where they last tried to load; food is green. Dots count levels.
#ifndef __CUDACC_RTC__
  static constexpr int width = 240, height = 240;
  static void render(const State& s, const Params& p, Canvas& canvas) {
    canvas.fill(colors::white);
    const float cell = 240.0f / static_cast<float>(p.size);
    for (int i = 1; i < p.size; ++i) {
      canvas.rectangle(static_cast<float>(i) * cell, 0, 1, 240, colors::light);
      canvas.rectangle(0, static_cast<float>(i) * cell, 240, 1, colors::light);
    }
    for (int i = 0; i < kThings; ++i) {
      const Thing& thing = s.thing[i];
      if (thing.level == 0) continue;
      const float x = (static_cast<float>(thing.column) + 0.5f) * cell, y = (static_cast<float>(thing.row) + 0.5f) * cell;
      if (i < agents) {
        if (thing.loading) canvas.disc(x, y, 0.46f * cell, colors::red);
        canvas.disc(x, y, 0.38f * cell, colors::blue);
      } else {
        canvas.rectangle(x - 0.38f * cell, y - 0.38f * cell, 0.76f * cell, 0.76f * cell, colors::green);
      }
      for (int k = 0; k < thing.level; ++k)
        canvas.disc(x + (static_cast<float>(k % 4) - 1.5f) * 0.18f * cell, y + (static_cast<float>(k / 4) - 1.0f) * 0.2f * cell,
                    0.06f * cell, colors::white);
    }
  }
#endif

 private:
  FUGU_HD static int8_t level(Rng& rng, int most) { return static_cast<int8_t>(1 + rng.below(static_cast<uint32_t>(most))); }
  FUGU_HD static int8_t inside(Rng& rng, int size) { return static_cast<int8_t>(1 + rng.below(static_cast<uint32_t>(size - 2))); }
  FUGU_HD static int distance(int difference) { return difference < 0 ? -difference : difference; }
  FUGU_HD static void put(float* at, float row, float column, int8_t level) {
    at[0] = row;
    at[1] = column;
    at[2] = 0.25f * static_cast<float>(level);
  }

  FUGU_HD static bool near_food(const State& s, int row, int column) {
    for (int i = agents; i < kThings; ++i)
      if (s.thing[i].level > 0 && distance(s.thing[i].row - row) <= 1 && distance(s.thing[i].column - column) <= 1) return true;
    return false;
  }

  // Whether food or an agent before `agent` lies where it stands.
  FUGU_HD static bool taken(const State& s, int agent) {
    for (int i = 0; i < kThings; ++i) {
      if (i >= agent && i < agents) continue;
      if (s.thing[i].level > 0 && s.thing[i].row == s.thing[agent].row && s.thing[i].column == s.thing[agent].column) return true;
    }
    return false;
  }

  // Takes what those who load can lift; returns its levels.
  FUGU_HD static int load(State& s, const Action* action) {
    for (int a = 0; a < agents; ++a) s.thing[a].loading = s.thing[a].level > 0 && action[a] == kLoad;
    int gathered = 0;
    for (int i = agents; i < kThings; ++i) {
      Thing& food = s.thing[i];
      if (food.level == 0) continue;
      int strength = 0;
      for (int a = 0; a < agents; ++a) {
        const int away = distance(s.thing[a].row - food.row) + distance(s.thing[a].column - food.column);
        if (s.thing[a].loading && away == 1) strength += s.thing[a].level;
      }
      if (strength < food.level) continue;
      gathered += food.level;
      food.level = 0;
    }
    return gathered;
  }

  FUGU_HD static void move(State& s, const Params& p, const Action* action) {
    int row[agents], column[agents];
    for (int a = 0; a < agents; ++a) {
      const int way = static_cast<int>(action[a]);
      row[a] = s.thing[a].row + (way == 3) - (way == 1);
      column[a] = s.thing[a].column + (way == 2) - (way == 4);
      bool blocked = row[a] < 0 || column[a] < 0 || row[a] >= p.size || column[a] >= p.size;
      for (int i = agents; i < kThings; ++i)
        blocked = blocked || (s.thing[i].level > 0 && s.thing[i].row == row[a] && s.thing[i].column == column[a]);
      if (blocked) row[a] = s.thing[a].row, column[a] = s.thing[a].column;
    }
    // Whoever wants a cell that another wants as well, or stays in, stays; which may be in the way of a third.
    for (int round = 0; round < agents; ++round) {
      bool clash[agents] = {};
      for (int a = 0; a < agents; ++a)
        for (int b = 0; b < agents; ++b)
          if (a != b && s.thing[a].level > 0 && s.thing[b].level > 0 && row[a] == row[b] && column[a] == column[b]) clash[a] = true;
      for (int a = 0; a < agents; ++a)
        if (clash[a]) row[a] = s.thing[a].row, column[a] = s.thing[a].column;
    }
    for (int a = 0; a < agents; ++a) {
      if (s.thing[a].level == 0) continue;
      s.thing[a].row = static_cast<int8_t>(row[a]);
      s.thing[a].column = static_cast<int8_t>(column[a]);
    }
  }
};

}  // namespace fugu
