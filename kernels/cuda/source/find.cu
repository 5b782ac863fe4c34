// Find keys, the first half of find_or_insert, and read the keys of slots.
#include "bucket.cuh"

// Eight lanes a key; a warp looks for four keys at once.
extern "C" __global__ void find(INDEX_PARAMETERS, const u16* features_U, const i64* ids_U, const u64* key_hash_U, i64 num,
                                i64* slots_U) {
  const Index index = INDEX_OF_PARAMETERS;
  i64 tiles = num_threads() / TILE, stop = (num + LANES / TILE - 1) / (LANES / TILE) * (LANES / TILE);
  for (i64 u = thread_number() / TILE; u < stop; u += tiles) {
    bool active = u < num;
    u16 feature = active ? features_U[u] : 0;
    i64 id = active ? ids_U[u] : 0;
    u64 key_hash = active ? key_hash_U[u] : NO_KEY_HASH;
    i64 slot = find_slot(index, active && !is_no_key(feature, id, key_hash), feature, id, key_hash);
    if (active && lane_number() % TILE == 0) slots_U[u] = slot;
  }
}

#define NO_HOME 0x7fffffff

// The slots of those present, which take the tick and with it protection; the buckets of the others, to be sorted by.
extern "C" __global__ void locate(INDEX_PARAMETERS, const u16* features_U, const i64* ids_U, const u64* key_hash_U, i64 num,
                                  i64 tick, i64* slots_U, i32* homes_U) {
  const Index index = INDEX_OF_PARAMETERS;
  i64 tiles = num_threads() / TILE, stop = (num + LANES / TILE - 1) / (LANES / TILE) * (LANES / TILE);
  for (i64 u = thread_number() / TILE; u < stop; u += tiles) {
    bool active = u < num;
    u16 feature = active ? features_U[u] : 0;
    i64 id = active ? ids_U[u] : 0;
    u64 key_hash = active ? key_hash_U[u] : NO_KEY_HASH;
    bool is_key = active && !is_no_key(feature, id, key_hash);
    i64 slot = find_slot(index, is_key, feature, id, key_hash);
    if (!active || lane_number() % TILE) continue;
    slots_U[u] = slot;
    homes_U[u] = is_key && slot < 0 ? (i32)range_of(key_hash, index.num_buckets) : NO_HOME;
    if (slot >= 0) *score_at(index, slot) = with_tick(*score_at(index, slot), tick);
  }
}

extern "C" __global__ void keys_of(INDEX_PARAMETERS, const i64* slots_N, i64 num, u16* features_N, i64* ids_N) {
  const Index index = INDEX_OF_PARAMETERS;
  for (i64 n = thread_number(); n < num; n += num_threads()) {
    u16 feature = 0;
    i64 id = 0;
    if (slots_N[n] >= 0) key_at(index, slots_N[n], feature, id);
    features_N[n] = feature;
    ids_N[n] = id;
  }
}

extern "C" __global__ void set_priorities(INDEX_PARAMETERS, const i64* slots_N, const i64* priorities_N, i64 num) {
  const Index index = INDEX_OF_PARAMETERS;
  for (i64 n = thread_number(); n < num; n += num_threads()) {
    if (slots_N[n] < 0) continue;
    i64* score = score_at(index, slots_N[n]);
    *score = with_priority(*score, priorities_N[n]);
  }
}

// Empties slots; *num_left counts the overflow rows that went, so that `rebuild` knows whether it has work.
extern "C" __global__ void erase(INDEX_PARAMETERS, i64* meta, const i64* slots_N, i64 num, u32* num_left) {
  const Index index = INDEX_OF_PARAMETERS;
  for (i64 n = thread_number(); n < num; n += num_threads()) {
    i64 slot = slots_N[n], row = slot - index.num_slots();
    if (slot < 0) continue;
    meta[slot * 4 + 2] = 0;
    if (row < 0) {
      index.digests[slot] = EMPTY;
    } else if (atomicExch(index.taken_O + row, 0u)) {
      u64 key_hash = hash_key(index.features_O[row], index.ids_O[row]);
      atomicSub(index.elsewhere + range_of(key_hash, index.num_buckets), 1u);
      atomicAdd(num_left, 1u);
    }
  }
}
