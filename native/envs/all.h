// Every environment of the package; adding one is two lines here.
#pragma once

#include "acrobot.h"
#include "cartpole.h"
#include "mountain_car.h"
#include "pendulum.h"

namespace fugu {

template <typename... E>
struct List {};

using AllEnvironments = List<Acrobot, CartPole, MountainCar, Pendulum>;

}  // namespace fugu
