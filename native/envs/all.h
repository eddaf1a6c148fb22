// Every environment of the package; adding one is two lines here.
#pragma once

#include "acrobot.h"
#include "bandit.h"
#include "breakout.h"
#include "cartpole.h"
#include "connect4.h"
#include "continuous.h"
#include "knapsack_cmdp.h"
#include "maze.h"
#include "memory.h"
#include "mountain_car.h"
#include "multiagent.h"
#include "password.h"
#include "pendulum.h"
#include "pong.h"
#include "safe_point.h"
#include "snake.h"
#include "spaces.h"
#include "squared.h"
#include "stochastic.h"
#include "tetris.h"

namespace fugu {

template <typename... E>
struct List {};

using AllEnvironments = List<Acrobot, Bandit, Breakout, CartPole, Connect4, Continuous, KnapsackCmdp, Maze, Memory, MountainCar,
                             Multiagent, Password, Pendulum, Pong, SafePoint, Snake, Spaces, Squared, Stochastic, Tetris>;

}  // namespace fugu
