// A row of DIM numbers, float32 or bfloat16 (HALF), in the CPU backend's lanes: 1, 8, 16, 32 or 64 at once, four a thread.
#pragma once
#include "hash.cuh"
#include "narrow.cuh"
#include "warp.cuh"

#define NUM_LANES (DIM == 1 ? 1 : DIM <= 8 ? 8 : DIM <= 16 ? 16 : DIM <= 32 ? 32 : 64)
#define VECTOR (DIM == 1 ? 1 : 4)
#define GROUP (NUM_LANES / VECTOR)                   // threads of a row
#define PIECES ((DIM + NUM_LANES - 1) / NUM_LANES)   // a thread has VECTOR numbers of each
#define VECTORS ((DIM + VECTOR - 1) / VECTOR)        // of a row
#define STATE_AT 6                                   // in a record of eight float32: one number of state
#define RECORD 4                                     // words of a record: count, last-seen, flags
#define DIRTY 1ll
#define NEEDS_SPILL 2ll

#if HALF
typedef u16 Value;
#else
typedef float Value;
#endif

struct Four {
  float at[VECTOR];
};

INLINE Four four_of(float number) {
  Four four;
#pragma unroll
  for (i32 j = 0; j < VECTOR; j++) four.at[j] = number;
  return four;
}

// Numbers d to d + 3 of a row, 0 beyond its end: in one load where rows are whole vectors.
INLINE Four load_four(const float* row, i32 d) {
  Four four = four_of(0.0f);
#if DIM % 4 == 0
  float4 loaded = *(const float4*)(row + d);
  four.at[0] = loaded.x, four.at[1] = loaded.y, four.at[2] = loaded.z, four.at[3] = loaded.w;
#else
#pragma unroll
  for (i32 j = 0; j < VECTOR; j++)
    if (d + j < DIM) four.at[j] = row[d + j];
#endif
  return four;
}

INLINE Four load_four(const u16* row, i32 d) {
  Four four = four_of(0.0f);
#if DIM % 4 == 0
  uint2 loaded = *(const uint2*)(row + d);
  four.at[0] = float_of_bits(loaded.x << 16), four.at[1] = float_of_bits(loaded.x & 0xffff0000u);
  four.at[2] = float_of_bits(loaded.y << 16), four.at[3] = float_of_bits(loaded.y & 0xffff0000u);
#else
#pragma unroll
  for (i32 j = 0; j < VECTOR; j++)
    if (d + j < DIM) four.at[j] = widened(row[d + j]);
#endif
  return four;
}

INLINE void store_four(float* row, i32 d, Four four) {
#if DIM % 4 == 0
  float4 stored = {four.at[0], four.at[1], four.at[2], four.at[3]};
  *(float4*)(row + d) = stored;
#else
#pragma unroll
  for (i32 j = 0; j < VECTOR; j++)
    if (d + j < DIM) row[d + j] = four.at[j];
#endif
}

INLINE void store_halves(u16* row, i32 d, const u16* halves) {
#if DIM % 4 == 0
  uint2 stored = {halves[0] | (u32)halves[1] << 16, halves[2] | (u32)halves[3] << 16};
  *(uint2*)(row + d) = stored;
#else
#pragma unroll
  for (i32 j = 0; j < VECTOR; j++)
    if (d + j < DIM) row[d + j] = halves[j];
#endif
}

INLINE void store_four(u16* row, i32 d, Four four) {
  u16 halves[VECTOR];
#pragma unroll
  for (i32 j = 0; j < VECTOR; j++) narrow(four.at[j], halves[j]);
  store_halves(row, d, halves);
}

// The sum of a row's lanes over its group of threads: the upper half is added to the lower until one is left. Every
// group of the warp comes along.
INLINE float total_of(Four lanes) {
#pragma unroll
  for (i32 offset = GROUP / 2; offset; offset /= 2)
#pragma unroll
    for (i32 j = 0; j < VECTOR; j++) lanes.at[j] = lanes.at[j] + __shfl_xor_sync(EVERY_LANE, lanes.at[j], offset);
#if DIM == 1
  return lanes.at[0];
#else
  return (lanes.at[0] + lanes.at[2]) + (lanes.at[1] + lanes.at[3]);
#endif
}
