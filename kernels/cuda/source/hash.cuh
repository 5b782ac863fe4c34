// Key hashes, text hashes and first values: springtide_client.keys and initial_values, equal bit by bit.
#pragma once
#include "portable.cuh"

#define GOLDEN 0x9E3779B97F4A7C15ull
#define STRING_SEED 0x535052494E475444ull

INLINE u64 mix64(u64 x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

INLINE u64 hash_key(u16 feature, i64 id) { return mix64((u64)id ^ ((u64)feature * GOLDEN)); }

// A batch whose length only the device knows is filled up with no keys: (0, 0) with a key hash that is not its own.
#define NO_KEY_HASH 1ull
INLINE bool is_no_key(u16 feature, i64 id, u64 key_hash) { return key_hash == NO_KEY_HASH && id == 0 && feature == 0; }

// Ranges of key hashes, in ascending order.
INLINE u64 range_of(u64 key_hash, u64 num_ranges) { return ((key_hash >> 32) * num_ranges) >> 32; }

INLINE i64 hash_string(const u8* bytes, i64 start, i64 stop) {
  u64 state = mix64(STRING_SEED ^ (u64)(stop - start));
  for (i64 at = start; at < stop; at += 8) {
    u64 word = 0;
    for (i64 b = 0; b < min_of(8, stop - at); b++) word |= (u64)bytes[at + b] << (8 * b);
    state = mix64(state ^ word);
  }
  return (i64)state;
}

// Element d of the row a key is born with; factor is scale / 2^23.
INLINE float first_value(u64 key_hash, u64 mixed_seed, i64 d, float factor) {
  u64 x = (key_hash ^ mixed_seed) + GOLDEN * (u64)(d + 1);
  return (float)((i32)(mix64(x) >> 40) - (1 << 23)) * factor;
}
