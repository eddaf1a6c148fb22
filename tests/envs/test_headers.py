"""The headers in native/envs as a compiler for the GPU sees them: no standard library, no pictures, only the simulation.

The system's compiler stands in for NVRTC: it is given no include folder but ours, and what NVRTC knows by itself is declared ahead.
"""

from __future__ import annotations

import subprocess

import pytest

from fugu.cli.new import NATIVE
from fugu.compiler import find_compiler, shipped_headers

HEADERS = sorted(path.name for path in (shipped_headers() / "fugu" / "envs").glob("*.h") if path.name != "all.h")

BUILT_IN = """
#define __host__
#define __device__
using size_t = decltype(sizeof 0);
extern "C" {
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
float sqrtf(float);
float floorf(float);
float fabsf(float);
}
"""


def look_as_the_gpu_does(code: str) -> str:
    """What the compiler complains about; "" where it is content."""
    command = [find_compiler().path, "-std=c++20", "-x", "c++", "-fsyntax-only", "-nostdinc", "-nostdinc++", "-D__CUDACC_RTC__"]
    command += ["-Wall", "-Wextra", "-Wno-missing-field-initializers", f"-I{shipped_headers()}", "-"]
    done = subprocess.run(command, input=BUILT_IN + code, capture_output=True, text=True)
    assert (done.returncode != 0) <= bool(done.stderr)
    return done.stderr


@pytest.mark.parametrize("header", HEADERS)
def test_header_needs_no_standard_library(header):
    assert look_as_the_gpu_does(f"#include <fugu/envs/{header}>\n") == ""


def test_all_environments_can_be_stepped_but_not_drawn_on_the_gpu():
    code = """
    #include <fugu/envs/all.h>
    template <typename E>
    int simulate() {
      typename E::State state{};
      typename E::Params params{};
      typename E::Action action[E::agents]{};
      typename E::Obs row{};
      float reward[E::agents];
      float costs[8 * E::agents];
      fugu::Rng rng = fugu::Rng::of(1);
      E::reset(state, params, rng);
      if constexpr (requires { requires E::independent; }) {
        bool fresh[E::agents]{}, terminated[E::agents];
        E::step(state, params, rng, action, fresh, reward, terminated);
      } else if constexpr (requires { E::costs; requires E::lanes; }) {
        E::step(state, params, action, reward, costs);
      } else if constexpr (requires { requires E::lanes; }) {
        E::step(state, params, action, reward);
      } else if constexpr (requires { E::costs; }) {
        E::step(state, params, rng, action, reward, costs);
      } else {
        E::step(state, params, rng, action, reward);
      }
      E::observe(state, params, 0, &row);
      static_cast<void>(costs);
      static_assert(!requires { E::width; });
      return 1;
    }
    template <typename... E>
    int simulate_all(fugu::List<E...>) { return (simulate<E>() + ...); }
    int number = simulate_all(fugu::AllEnvironments{});
    """
    assert look_as_the_gpu_does(code) == ""


def test_the_starter_needs_no_standard_library():
    assert look_as_the_gpu_does(NATIVE.replace("#pragma once", "")) == ""


def test_a_header_that_needs_the_standard_library_is_found_out():
    assert "cmath" in look_as_the_gpu_does("#include <cmath>\n")
