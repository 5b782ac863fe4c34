// The gradients of a batch, and their sums by key: in the order of the batch, long sums in parts.
#pragma once
#include "row.cuh"

#define LONG 256  // occurrences of a key beyond which they are summed in parts of as many, the parts in their order

// What is learned: occurrences by key, and gradients; bags_K and scales_K may be null.
struct Batch {
  const i64* order_K;
  const i64* offsets_U1;
  i64 num_unique;
  const float* grads;
  const i64* bags_K;
  const float* scales_K;
};

#define BATCH_PARAMETERS                                                                        \
  const i64 *order_K, const i64 *offsets_U1, i64 num_unique, const float *grads, const i64 *bags_K, \
      const float *scales_K
#define BATCH_OF_PARAMETERS {order_K, offsets_U1, num_unique, grads, bags_K, scales_K}

// Numbers d and on of the gradient of the occurrence at position p in the order of keys.
INLINE Four gradient(const Batch& batch, i64 p, i32 d) {
  i64 k = batch.order_K[p];
  Four g = load_four(batch.grads + (batch.bags_K ? batch.bags_K[k] : k) * DIM, d);
  if (batch.scales_K) {
    float scale = batch.scales_K[k];
#pragma unroll
    for (i32 j = 0; j < VECTOR; j++) g.at[j] = g.at[j] * scale;
  }
  return g;
}

INLINE Four sum_of(const Batch& batch, i64 first, i64 last, i32 d) {
  Four sum = gradient(batch, first, d);
#pragma unroll 4
  for (i64 p = first + 1; p < last; p++) {
    Four g = gradient(batch, p, d);
#pragma unroll
    for (i32 j = 0; j < VECTOR; j++) sum.at[j] = sum.at[j] + g.at[j];
  }
  return sum;
}

INLINE i32 element_of(i32 piece) { return piece * NUM_LANES + (lane_number() % GROUP) * VECTOR; }

// The last key that begins before a position.
INLINE i64 last_key_before(const Batch& batch, i64 position) {
  i64 low = 0, high = batch.num_unique;  // the key is in low..high
  while (high - low > 1) {
    i64 middle = (low + high) / 2;
    if (batch.offsets_U1[middle] < position) low = middle; else high = middle;
  }
  return low;
}

// Where a part's sum is kept: of the parts that begin within one window of LONG positions, one at most is its key's
// first, and one at most is not.
INLINE float* part_at(float* parts, i64 begin, i64 first) {
  return parts + (begin / LONG * 2 + (begin != first)) * (PIECES * NUM_LANES);
}

INLINE void sum_part(const Batch& batch, i64 key, i64 begin, float* parts) {
  i64 first = batch.offsets_U1[key], last = batch.offsets_U1[key + 1];
  float* part = part_at(parts, begin, first);
#pragma unroll
  for (i32 piece = 0; piece < PIECES; piece++) {
    i32 d = element_of(piece);
    if (d >= DIM) continue;
    Four sum = sum_of(batch, begin, min_of(begin + LONG, last), d);
#pragma unroll
    for (i32 j = 0; j < VECTOR; j++) part[d + j] = sum.at[j];
  }
}

INLINE Four sum_of_key(const Batch& batch, const float* parts, i64 first, i64 last, i32 d) {
  if (last - first <= LONG) return sum_of(batch, first, last, d);
  Four sum = four_of(0.0f);
  for (i64 begin = first; begin < last; begin += LONG) {
    const float* part = part_at((float*)parts, begin, first) + d;
#pragma unroll
    for (i32 j = 0; j < VECTOR; j++) sum.at[j] = begin == first ? part[j] : sum.at[j] + part[j];
  }
  return sum;
}
