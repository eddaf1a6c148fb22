// Vectors of kLanes numbers. Included once per instruction set, inside a namespace of its own and under that set's target pragma;
// therefore no include guard and no standard library. Whoever includes it says how many lanes there are.

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

#define FUGU_INLINE static inline __attribute__((always_inline))

FUGU_INLINE Floats load(const float* from) {
  Floats v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

FUGU_INLINE void store(float* to, Floats v) { __builtin_memcpy(to, &v, sizeof v); }
