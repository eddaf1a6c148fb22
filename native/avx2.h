// A function compiled a second time, for machines with wider vectors than the least. Everything it calls becomes part of it.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define FUGU_AVX2 1
#define FUGU_FOR_AVX2 __attribute__((target("avx2"), flatten))
#endif
