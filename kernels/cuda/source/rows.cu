// Rows in and out of a store: a batch's, one a key or one a bag; first values; whole rows by slot.
#include "row.cuh"

// Row slots_U[inverse_K[k]] (slots_U[k] where there is no inverse) to out k; NaN where the slot is none. A thread moves
// one vector.
extern "C" __global__ void gather(const Value* values, const i64* slots_U, const i64* inverse_K, i64 num, float* out) {
  for (i64 i = thread_number(); i < num * VECTORS; i += num_threads()) {
    i64 k = i / VECTORS, slot = slots_U[inverse_K ? inverse_K[k] : k];
    i32 d = (i32)(i % VECTORS) * VECTOR;
    store_four(out + k * DIM, d, slot < 0 ? four_of(float_of_bits(0x7fc00000u)) : load_four(values + slot * DIM, d));
  }
}

#define SUM 0
#define MEAN 1
#define MAX 2

// The rows of keys offsets_B1[b]..offsets_B1[b + 1] pooled into row b, in the order of the batch; a thread has a vector
// of a bag. scales_K, of a sum: by what each row is multiplied, or null.
extern "C" __global__ void pool(const Value* values, const i64* slots_U, const i64* inverse_K, const i64* offsets_B1,
                                i64 num_bags, i32 mode, const float* scales_K, float* out, i64* winners) {
  for (i64 i = thread_number(); i < num_bags * VECTORS; i += num_threads()) {
    i64 b = i / VECTORS, num_rows = 0, won[VECTOR];
    i32 d = (i32)(i % VECTORS) * VECTOR;
    Four pooled = four_of(mode == MAX ? float_of_bits(0x7fc00000u) : 0.0f);
#pragma unroll
    for (i32 j = 0; j < VECTOR; j++) won[j] = -1;
    for (i64 k = offsets_B1[b]; k < offsets_B1[b + 1]; k++) {
      i64 slot = slots_U[inverse_K[k]];
      if (slot < 0) continue;
      num_rows++;
      Four row = load_four(values + slot * DIM, d);
#pragma unroll
      for (i32 j = 0; j < VECTOR; j++) {
        if (scales_K) {
          pooled.at[j] = pooled.at[j] + row.at[j] * scales_K[k];
        } else if (mode != MAX) {
          pooled.at[j] = pooled.at[j] + row.at[j];
        } else if (!(row.at[j] <= pooled.at[j])) {  // NaN in the pooled row is less than anything
          pooled.at[j] = row.at[j], won[j] = k;
        }
      }
    }
    if (num_rows == 0) pooled = four_of(0.0f);
#pragma unroll
    for (i32 j = 0; j < VECTOR; j++) {
      if (mode == MEAN && num_rows) pooled.at[j] = pooled.at[j] / (float)num_rows;
      if (mode == MAX && d + j < DIM) winners[b * DIM + d + j] = won[j];
    }
    store_four(out + b * DIM, d, pooled);
  }
}

extern "C" __global__ void scatter(Value* values, const i64* slots_N, i64 num, const float* values_ND) {
  for (i64 i = thread_number(); i < num * VECTORS; i += num_threads()) {
    i64 n = i / VECTORS, slot = slots_N[n];
    i32 d = (i32)(i % VECTORS) * VECTOR;
    if (slot >= 0) store_four(values + slot * DIM, d, load_four(values_ND + n * DIM, d));
  }
}

// First values; state, count and last-seen 0, NEEDS_SPILL.
extern "C" __global__ void create(Value* values, i64* meta, float* states, i64 own_states, const i64* slots_N,
                                  const u16* features_N, const i64* ids_N, i64 num, u64 mixed_seed, float factor) {
  for (i64 i = thread_number(); i < num * VECTORS; i += num_threads()) {
    i64 n = i / VECTORS, slot = slots_N[n];
    i32 piece = (i32)(i % VECTORS), d = piece * VECTOR;
    if (slot < 0) continue;
    u64 key_hash = hash_key(features_N[n], ids_N[n]);
    Four row;
#pragma unroll
    for (i32 j = 0; j < VECTOR; j++) row.at[j] = first_value(key_hash, mixed_seed, d + j, factor);
    store_four(values + slot * DIM, d, row);
    for (i64 s = piece; s < own_states; s += VECTORS) states[slot * own_states + s] = 0.0f;
    if (piece == 0)
      for (i32 w = 0; w < RECORD; w++) meta[slot * RECORD + w] = w == 2 ? NEEDS_SPILL : 0;
  }
}
