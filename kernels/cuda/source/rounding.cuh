// Stochastic rounding to bfloat16 by a hash of seed, key hash, count and element: the same bits as the CPU backend.
#pragma once
#include "row.cuh"

// From these each element's bits are made.
INLINE u64 step_bits(u64 key_hash, u64 mixed_seed, i64 count) {
  return mix64((key_hash ^ mixed_seed) + GOLDEN * (u64)count);
}

INLINE u16 rounded(float number, i32 element, u64 bits) {
  u32 x = ((u32)element * 0x9E3779B9u + (u32)bits) ^ (u32)(bits >> 32);
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return (u16)((bits_of_float(number) + (x >> 16)) >> 16);
}

INLINE void store_rounded(u16* row, i32 d, Four four, u64 bits) {
  u16 halves[VECTOR];
#pragma unroll
  for (i32 j = 0; j < VECTOR; j++) halves[j] = rounded(four.at[j], d + j, bits);
  store_halves(row, d, halves);
}
INLINE void store_rounded(float* row, i32 d, Four four, u64) { store_four(row, d, four); }
