// Compiles the kernels in the file FUGU_SET once per instruction set, and finds those of a set. Included by a header inside its own
// namespace, after the table `Kernels`.
namespace portable {
#define FUGU_LANES 4
#include FUGU_SET
#undef FUGU_LANES
}  // namespace portable

// Under a target pragma a function may use instructions that the rest of the file must not. The sets differ in the width of a vector
// and in what fma() compiles to.
#if defined(__x86_64__) && (defined(__clang__) || defined(__GNUC__))
#define FUGU_FMA 1

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace avx2 {
#define FUGU_LANES 8
#include FUGU_SET
#undef FUGU_LANES
}  // namespace avx2
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
namespace avx512 {
#define FUGU_LANES 16
#include FUGU_SET
#undef FUGU_LANES
}  // namespace avx512
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

// The kernels of an instruction set by name, null where this processor lacks it; of the best set for "best".
inline const Kernels* find_kernels(std::string_view name) {
  const bool best = name == "best";
#ifdef FUGU_FMA
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl");
  if ((best || name == "avx512") && avx512) return &avx512::kernels;
  if ((best || name == "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &avx2::kernels;
#endif
  return best || name == "portable" ? &portable::kernels : nullptr;
}
#undef FUGU_SET
