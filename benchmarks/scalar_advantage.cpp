// One row at a time, one scalar after the other, flags as floats: how advantages are commonly computed on a CPU. A stand-in, written for
// this comparison from the formula, for PufferLib 3.0's kernel: reward and done belong to the observation they arrive with (hence
// t + 1), the last column gets no advantage, truncation is not known.
#include <algorithm>
#include <cstdint>

extern "C" void scalar_advantage(const float* value, const float* reward, const float* done, const float* ratio, float* out,
                                 int64_t segments, int64_t horizon, float gamma, float lam, float rho_clip, float c_clip) {
  for (int64_t segment = 0; segment < segments; ++segment) {
    const int64_t row = segment * horizon;
    float advantage = 0;
    out[row + horizon - 1] = 0;
    for (int64_t t = horizon - 2; t >= 0; --t) {
      const int64_t i = row + t;
      const float going_on = 1.0f - done[i + 1];
      const float rho = std::min(ratio[i], rho_clip);
      const float c = std::min(ratio[i], c_clip);
      const float delta = rho * (reward[i + 1] + gamma * value[i + 1] * going_on - value[i]);
      advantage = delta + gamma * lam * c * advantage * going_on;
      out[i] = advantage;
    }
  }
}
