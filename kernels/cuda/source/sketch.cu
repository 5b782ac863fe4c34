// Keys without rows: how often they were asked for, and when they left. springtide_client.rows.sketch has the layout.
#include "compact.cuh"
#include "hash.cuh"

#define BLOCK 64
#define COUNTERS_AT 4
#define NUM_COUNTERS 60
#define HIGHEST 255

// What each key is sorted by: the block or the place of its key hash.
extern "C" __global__ void ranges_of(const u64* key_hash_U, i64 num, u64 num_ranges, i32* ranges_U) {
  for (i64 u = thread_number(); u < num; u += num_threads()) ranges_U[u] = (i32)range_of(key_hash_U[u], num_ranges);
}

INLINE i64 counter_of(u64 key_hash, i32 i) {
  return COUNTERS_AT + (i64)((((key_hash >> (8 * i)) & 0xff) * NUM_COUNTERS) >> 8);
}

INLINE i64 least_of(const u8* block, u64 key_hash) {
  i64 least = HIGHEST;
  for (i32 i = 0; i < 4; i++) least = min_of(least, block[counter_of(key_hash, i)]);
  return least;
}

INLINE i64 missing_halvings(const u8* block, i64 age) {
  return min_of(max_of(age - (i64) * (const u32*)block, 0), 8);
}

// The keys of a block in the order of the batch, by the thread that sees the first of them.
extern "C" __global__ void add_counts(u8* blocks, const u64* key_hash_U, const i64* occurrences_U, const i32* blocks_K,
                                      const i64* order_K, i64 num, i64 age, i64* estimates_U) {
  for (i64 first = thread_number(); first < num; first += num_threads()) {
    if (first > 0 && blocks_K[first - 1] == blocks_K[first]) continue;
    u8* block = blocks + (i64)blocks_K[first] * BLOCK;
    if (i64 missing = missing_halvings(block, age)) {
      for (i32 at = COUNTERS_AT; at < BLOCK; at++) block[at] = (u8)(block[at] >> missing);
      *(u32*)block = (u32)age;
    }
    for (i64 k = first; k < num && blocks_K[k] == blocks_K[first]; k++) {
      i64 u = order_K[k];
      u64 key_hash = key_hash_U[u];
      i64 raised = min_of(HIGHEST, least_of(block, key_hash) + min_of(HIGHEST, occurrences_U[u]));
      for (i32 i = 0; i < 4; i++) {
        u8* counter = block + counter_of(key_hash, i);
        *counter = (u8)max_of(*counter, raised);
      }
      estimates_U[u] = raised;
    }
  }
}

extern "C" __global__ void count_begun(const i32* blocks_K, i64 num, i64 chunk, i64* counts) {
  count_kept([&](i64 k) { return k == 0 || blocks_K[k - 1] != blocks_K[k]; }, num, chunk, counts);
}

extern "C" __global__ void list_begun(const i32* blocks_K, i64 num, i64 chunk, const i64* counts, i64* blocks_N,
                                      i64* num_begun) {
  write_kept([&](i64 k) { return k == 0 || blocks_K[k - 1] != blocks_K[k]; },
             [&](i64 k, i64 rank) { blocks_N[rank] = blocks_K[k]; }, num, chunk, counts, num_begun);
}

extern "C" __global__ void estimate(const u8* blocks, u64 num_blocks, const u64* key_hash_U, i64 num, i64 age,
                                    i64* estimates_U) {
  for (i64 u = thread_number(); u < num; u += num_threads()) {
    const u8* block = blocks + range_of(key_hash_U[u], num_blocks) * BLOCK;
    estimates_U[u] = least_of(block, key_hash_U[u]) >> missing_halvings(block, age);
  }
}

#define WORDS (BLOCK / 4)

extern "C" __global__ void read_blocks(const u32* blocks, const i64* blocks_N, i64 num, u32* words_N) {
  for (i64 i = thread_number(); i < num * WORDS; i += num_threads()) {
    i64 block = blocks_N[i / WORDS];
    words_N[i] = block < 0 ? 0 : blocks[block * WORDS + i % WORDS];
  }
}

extern "C" __global__ void count_strange(const i64* blocks_N, i64 num, i64 num_blocks, u64* num_strange) {
  for (i64 n = thread_number(); n < num; n += num_threads())
    if (blocks_N[n] < 0 || blocks_N[n] >= num_blocks) atomicAdd(num_strange, 1ull);
}

extern "C" __global__ void write_blocks(u32* blocks, i64 num_blocks, const i64* blocks_N, i64 num, const u32* words_N) {
  for (i64 i = thread_number(); i < num * WORDS; i += num_threads()) {
    i64 block = blocks_N[i / WORDS];
    if (block >= 0 && block < num_blocks) blocks[block * WORDS + i % WORDS] = words_N[i];
  }
}

// A ghost: a fingerprint, 32 bits of the key hash, above the tick at which the key left, modulo 2^32; 0 = empty.
INLINE u64 fingerprint_of(u64 key_hash) { return (key_hash & 0xffffffffu) ? key_hash & 0xffffffffu : 1; }

// Of the keys of one place the last in the order of the batch stays.
extern "C" __global__ void add_ghosts(u64* words_G, const u64* mixed_N, const i32* places_K, const i64* order_K,
                                      i64 num, i64 tick) {
  for (i64 k = thread_number(); k < num; k += num_threads()) {
    if (k + 1 < num && places_K[k + 1] == places_K[k]) continue;
    words_G[places_K[k]] = fingerprint_of(mixed_N[order_K[k]]) << 32 | ((u64)tick & 0xffffffffu);
  }
}

extern "C" __global__ void count_ghosts(u64* words_G, u64 num_words, const u64* mixed_N, i64 num, i64 since_tick,
                                        u64* num_found) {
  for (i64 n = thread_number(); n < num; n += num_threads()) {
    u64* place = words_G + range_of(mixed_N[n], num_words);
    u64 word = *place;
    i32 later = (i32)((u32)word - (u32)since_tick);
    if (word >> 32 != fingerprint_of(mixed_N[n]) || later < 0) continue;
    if (atomicCAS(place, word, 0ull) == word) atomicAdd(num_found, 1ull);
  }
}
