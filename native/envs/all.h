// Every environment of the package; adding one is two lines here.
#pragma once

#include "acrobot.h"
#include "bandit.h"
#include "breakout.h"
#include "cartpole.h"
#include "connect4.h"
#include "continuous.h"
#include "foraging.h"
#include "hidden_bonus.h"
#include "knapsack_cmdp.h"
#include "maze.h"
#include "memory.h"
#include "mountain_car.h"
#include "multiagent.h"
#include "password.h"
#include "pendulum.h"
#include "pong.h"
#include "reverse.h"
#include "safe_point.h"
#include "snake.h"
#include "spaces.h"
#include "squared.h"
#include "stochastic.h"
#include "tetris.h"

namespace fugu {

template <typename... E>
struct List {};

using AllEnvironments = List<Acrobot, Bandit, Breakout, CartPole, Connect4, Continuous, Foraging, HiddenBonus, KnapsackCmdp, Maze, Memory,
                             MountainCar, Multiagent, Password, Pendulum, Pong, Reverse, SafePoint, Snake, Spaces, Squared, Stochastic,
                             Tetris>;

}  // namespace fugu
