// Rows that were learned outside `update`: values written back, occurrences counted. States are written by row_metadata.
#include "bucket.cuh"
#include "rounding.cuh"

// Float32 rows into their slots; bfloat16 is rounded by a hash of key, count and element. A thread moves one vector.
extern "C" __global__ void write_values(INDEX_PARAMETERS, Value* values, const i64* meta, const i64* slots_U, i64 num,
                                        const float* values_UD, u64 mixed_seed) {
  const Index index = INDEX_OF_PARAMETERS;
  for (i64 i = thread_number(); i < num * VECTORS; i += num_threads()) {
    i64 u = i / VECTORS, slot = slots_U[u];
    i32 d = (i32)(i % VECTORS) * VECTOR;
    if (slot < 0) continue;
    u64 bits = HALF ? step_bits(key_hash_of_slot(index, slot), mixed_seed, meta[slot * RECORD]) : 0;
    store_rounded(values + slot * DIM, d, load_four(values_UD + u * DIM, d), bits);
  }
}

// Marks rows as changed, and counts their occurrences where these are given. fresh_U as for update.
extern "C" __global__ void touch(INDEX_PARAMETERS, i64* meta, const i64* slots_U, i64 num, const i64* occurrences_U,
                                 const i64* last_seen_U, i32 count_priority, i64* fresh_U) {
  const Index index = INDEX_OF_PARAMETERS;
  for (i64 u = thread_number(); u < num; u += num_threads()) {
    i64 slot = slots_U[u];
    fresh_U[u] = NO_SLOT;
    if (slot < 0 || (occurrences_U && occurrences_U[u] == 0)) continue;
    i64* record = meta + slot * RECORD;
    if (occurrences_U) {
      record[0] += occurrences_U[u];
      record[1] = max_of(record[1], last_seen_U[u]);
      if (count_priority) *score_at(index, slot) = with_priority(*score_at(index, slot), record[0]);
    }
    if (!(record[2] & DIRTY)) fresh_U[u] = slot;
    record[2] |= DIRTY | NEEDS_SPILL;
  }
}
