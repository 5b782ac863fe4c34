// Keys before they have rows: hashes, first values, the unique keys of a batch.
#include "compact.cuh"
#include "hash.cuh"

extern "C" __global__ void mix_keys(const u16* features_U, const i64* ids_U, i64 num, u64* key_hash_U) {
  for (i64 u = thread_number(); u < num; u += num_threads()) key_hash_U[u] = hash_key(features_U[u], ids_U[u]);
}

extern "C" __global__ void hash_texts(const u8* bytes_T, const i64* offsets_N1, i64 num, i64* ids_N) {
  for (i64 n = thread_number(); n < num; n += num_threads())
    ids_N[n] = hash_string(bytes_T, offsets_N1[n], offsets_N1[n + 1]);
}

extern "C" __global__ void initial_values(const u16* features_U, const i64* ids_U, i64 num, i64 dim, u64 mixed_seed,
                                        float factor, float* values_UD) {
  for (i64 i = thread_number(); i < num * dim; i += num_threads())
    values_UD[i] = first_value(hash_key(features_U[i / dim], ids_U[i / dim]), mixed_seed, i % dim, factor);
}

#define EMPTY 0xffffffffu

// A hash table of positions: the earliest occurrence of a key wins its place.
extern "C" __global__ void enter_keys(const u16* features_K, const i64* ids_K, i64 num, u32* places, u64 mask,
                                      u32* place_of_K) {
  for (i64 k = thread_number(); k < num; k += num_threads()) {
    u64 place = hash_key(features_K[k], ids_K[k]) & mask;
    for (;; place = (place + 1) & mask) {
      u32 other = places[place];
      if (other == EMPTY) other = atomicCAS(places + place, EMPTY, (u32)k);
      if (other == EMPTY) break;
      if (ids_K[other] != ids_K[k] || features_K[other] != features_K[k]) continue;
      if ((u32)k < other) atomicMin(places + place, (u32)k);
      break;
    }
    place_of_K[k] = (u32)place;
  }
}

// The outcome of a batch, by unique key.
extern "C" __global__ void count_unique(const u32* places, const u32* place_of_K, const u16*, const i64*, i64 num,
                                        i64 chunk, i64* counts) {
  count_kept([&](i64 k) { return places[place_of_K[k]] == (u32)k; }, num, chunk, counts);
}

extern "C" __global__ void list_unique(const u32* places, const u32* place_of_K, const u16* features_K,
                                       const i64* ids_K, i64 num, i64 chunk, const i64* counts, u16* features_U,
                                       i64* ids_U, u64* key_hash_U, u64* occurrences_U, i64* last_seen_U, u32* rank_K,
                                       i64* num_unique) {
  auto write = [&](i64 k, i64 rank) {
    features_U[rank] = features_K[k];
    ids_U[rank] = ids_K[k];
    key_hash_U[rank] = hash_key(features_K[k], ids_K[k]);
    occurrences_U[rank] = 0;
    last_seen_U[rank] = -0x7fffffffffffffffll - 1;
    rank_K[k] = (u32)rank;
  };
  write_kept([&](i64 k) { return places[place_of_K[k]] == (u32)k; }, write, num, chunk, counts, num_unique);
}

// Integers add up and compare the same in any order, so this depends on none.
extern "C" __global__ void count_occurrences(const u32* places, const u32* place_of_K, const u32* rank_K,
                                             const i64* event_ms_K, i64 num, i64* inverse_K, u64* occurrences_U,
                                             i64* last_seen_U) {
  for (i64 k = thread_number(); k < num; k += num_threads()) {
    u32 u = rank_K[places[place_of_K[k]]];
    inverse_K[k] = u;
    atomicAdd(occurrences_U + u, 1ull);
    atomicMax(last_seen_U + u, event_ms_K[k]);
  }
}

// Padding behind the unique keys when their number stays on the device: no keys, without occurrences.
extern "C" __global__ void pad_unique(const i64* num_unique, i64 num, u16* features_U, i64* ids_U, u64* key_hash_U,
                                      u64* occurrences_U, i64* last_seen_U) {
  for (i64 u = *num_unique + thread_number(); u < num; u += num_threads()) {
    features_U[u] = 0, ids_U[u] = 0, key_hash_U[u] = NO_KEY_HASH;
    occurrences_U[u] = 0, last_seen_U[u] = 0;
  }
}

extern "C" __global__ void narrow_positions(const i64* inverse_K, i64 num, i32* narrow_K) {
  for (i64 k = thread_number(); k < num; k += num_threads()) narrow_K[k] = (i32)inverse_K[k];
}

// Where each of the keys begins among sorted ones: offsets_U1[u] is the first position of u or more.
extern "C" __global__ void begin_keys(const i32* sorted_K, i64 num_keys, i64 num_unique, i64* offsets_U1) {
  for (i64 u = thread_number(); u <= num_unique; u += num_threads()) {
    i64 low = 0, high = num_keys;
    while (low < high) {
      i64 middle = (low + high) / 2;
      if (sorted_K[middle] < u) low = middle + 1; else high = middle;
    }
    offsets_U1[u] = low;
  }
}
