// Every environment of the package; adding one is two lines here.
#pragma once

#include "acrobot.h"
#include "breakout.h"
#include "cartpole.h"
#include "mountain_car.h"
#include "pendulum.h"
#include "pong.h"
#include "snake.h"
#include "tetris.h"

namespace fugu {

template <typename... E>
struct List {};

using AllEnvironments = List<Acrobot, Breakout, CartPole, MountainCar, Pendulum, Pong, Snake, Tetris>;

}  // namespace fugu
