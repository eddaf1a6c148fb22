// An observation of two parts and an action of two parts: does each part get where it belongs?
//
// The observation is a Dict of `flat`, five numbers -1 or 1, and `image`, 5 x 5 reals in [-1, 1]; the action a Dict of `flat`
// and `image`, each 0 or 1. Each part of the action is paid 0.5 if it is 1 where the sum of its part of the observation is
// positive and 0 where it is negative (no sum is ever 0). The episode ends with the step.
// Optimum: the two signs, return 1. A uniformly random policy has a mean return of 0.5, and so has every policy that mixes up
// the parts; one that sees only one part right gets 0.75.
// Logs: score, the return; flat and image, the share of right answers of each part.
#pragma once

#include "../env.h"

#ifndef __CUDACC_RTC__
#include "../canvas.h"
#endif

namespace fugu {

struct Spaces {
  static constexpr const char* name = "spaces";
  static constexpr int agents = 1;
  static constexpr int time_limit = 0;
  static constexpr int kFlat = 5, kSide = 5, kPixels = kSide * kSide;

  struct Obs {
    int8_t flat[kFlat];
    float image[kPixels];
  };
  struct Action {
    int64_t flat, image;
  };

  static constexpr Field observation[] = {signed_bytes("flat", kFlat, -1, 1), image("image", kSide, kSide, -1.0, 1.0)};
  static constexpr Field action[] = {discrete("flat", 2), discrete("image", 2)};

  struct Params {};

  struct State {
    int8_t flat[kFlat];
    int8_t flat_right, image_right;  // 1 or 0, -1 before the step
    uint8_t pixels[28];  // 0 .. 255 for -1 .. 1; only the first 25 are used
  };

  FUGU_HD static void reset(State& s, const Params&, Rng& rng) {
    const uint32_t signs = rng.next();
    for (int i = 0; i < kFlat; ++i) s.flat[i] = static_cast<int8_t>((signs >> i & 1) * 2) - 1;
    for (int i = 0; i < kPixels; i += 4) {
      const uint32_t four = rng.next();
      for (int k = 0; k < 4; ++k) s.pixels[i + k] = static_cast<uint8_t>(four >> 8 * k);
    }
    s.flat_right = s.image_right = -1;
  }

  FUGU_HD static bool step(State& s, const Params&, Rng&, const Action* action, float* reward) {
    s.flat_right = (action[0].flat == 1) == flat_positive(s);
    s.image_right = (action[0].image == 1) == image_positive(s);
    reward[0] = 0.5f * static_cast<float>(s.flat_right + s.image_right);
    return true;
  }

  FUGU_HD static bool valid(const State& s, const Params&, bool) {
    for (const int8_t number : s.flat)
      if (!between(number, -1, 1)) return false;
    return between(s.flat_right, -1, 1) && between(s.image_right, -1, 1);
  }

  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) {
    for (int i = 0; i < kFlat; ++i) row->flat[i] = s.flat[i];
    for (int i = 0; i < kPixels; ++i) row->image[i] = static_cast<float>(2 * s.pixels[i] - 255) * (1.0f / 255.0f);
  }

  static constexpr const char* logs[] = {"score", "flat", "image"};
  FUGU_HD static void log(const State& s, const Params&, int, float* values) {
    values[1] = s.flat_right > 0 ? 1.0f : 0.0f;
    values[2] = s.image_right > 0 ? 1.0f : 0.0f;
    values[0] = 0.5f * (values[1] + values[2]);
  }

  // The image, the numbers below it, and at the right of each whether it was answered rightly.
#ifndef __CUDACC_RTC__
  static constexpr int width = 220, height = 220;
  static void render(const State& s, const Params&, Canvas& canvas) {
    canvas.fill(colors::white);
    for (int i = 0; i < kPixels; ++i) {
      const uint8_t level = s.pixels[i];
      canvas.rectangle(10.0f + 32.0f * static_cast<float>(i % kSide), 10.0f + 32.0f * static_cast<float>(i / kSide), 32, 32,
                       {level, level, level});
    }
    for (int i = 0; i < kFlat; ++i)
      canvas.rectangle(12.0f + 32.0f * static_cast<float>(i), 180, 28, 28, s.flat[i] > 0 ? colors::blue : colors::light);
    canvas.disc(195, 90, 12, s.image_right < 0 ? colors::light : s.image_right ? colors::green : colors::red);
    canvas.disc(195, 194, 12, s.flat_right < 0 ? colors::light : s.flat_right ? colors::green : colors::red);
  }
#endif

 private:
  FUGU_HD static bool flat_positive(const State& s) {
    int sum = 0;
    for (int i = 0; i < kFlat; ++i) sum += s.flat[i];
    return sum > 0;  // an odd number of odd numbers
  }
  FUGU_HD static bool image_positive(const State& s) {
    int sum = 0;
    for (int i = 0; i < kPixels; ++i) sum += 2 * s.pixels[i] - 255;
    return sum > 0;  // as above
  }
};

}  // namespace fugu
