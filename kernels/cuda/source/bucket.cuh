// Buckets of 128 slots: a line of digests, and arrays by slot of features, ids and score words.
#pragma once
#include "hash.cuh"
#include "scores.cuh"
#include "warp.cuh"

#define WIDTH 128
#define TILE 8  // lanes that probe one key: 16 digests each
#define SLOTS_A_LANE (WIDTH / LANES)
#define NO_SLOT (-1ll)
#define EMPTY 0u  // the digest of a slot without a key

struct Index {
  u8* digests;
  u16* features;
  i64* ids;
  i64* scores;
  u32* elsewhere;  // of each bucket: how many of its keys are in the overflow area
  u64 num_buckets;
  u16* features_O;
  i64* ids_O;
  i64* scores_O;
  u32* taken_O;
  i32* places;  // overflow rows by key hash, -1 where there is none
  u64 place_mask;
  i64 num_overflow;

  INLINE i64 num_slots() const { return (i64)num_buckets * WIDTH; }
};

// An Index as kernel parameters: CuPy passes no structs.
#define INDEX_PARAMETERS                                                                                         \
  u8 *digests, u16 *features, i64 *ids, i64 *scores, u32 *elsewhere, u64 num_buckets, u16 *features_O, i64 *ids_O, \
      i64 *scores_O, u32 *taken_O, i32 *places, u64 place_mask, i64 num_overflow
#define INDEX_OF_PARAMETERS                                                                              \
  {digests, features, ids, scores, elsewhere, num_buckets, features_O, ids_O, scores_O, taken_O, places, \
   place_mask, num_overflow}

INLINE u32 digest_of(u64 key_hash) { return (key_hash & 0xff) ? (u32)(key_hash & 0xff) : 1u; }

// Bit i: byte i of the word equals the byte.
INLINE u32 equal_bytes(u32 word, u32 byte) {
  u32 equal = __vcmpeq4(word, byte * 0x01010101u) & 0x08040201u;
  return (equal | equal >> 8 | equal >> 16 | equal >> 24) & 0xf;
}

// Bit i: digest i of the 16 equals this one.
INLINE u32 equal_digests(uint4 digests, u32 digest) {
  return equal_bytes(digests.x, digest) | equal_bytes(digests.y, digest) << 4 | equal_bytes(digests.z, digest) << 8 |
         equal_bytes(digests.w, digest) << 12;
}

INLINE bool is_key_at(const Index& index, i64 slot, u16 feature, i64 id) {
  return index.ids[slot] == id && index.features[slot] == feature;
}

INLINE u64 key_hash_at(const Index& index, i64 slot) { return hash_key(index.features[slot], index.ids[slot]); }

// The overflow row of a key, or -1. Linear probing; erasing overflow rows rebuilds the places.
INLINE i64 overflow_row_of(const Index& index, u16 feature, i64 id, u64 key_hash) {
  for (u64 place = key_hash & index.place_mask;; place = (place + 1) & index.place_mask) {
    i32 row = index.places[place];
    if (row < 0 || (index.ids_O[row] == id && index.features_O[row] == feature)) return row;
  }
}

// The slot of a key, or NO_SLOT; the same to all eight lanes of its tile. Inactive tiles come along.
INLINE i64 find_slot(const Index& index, bool active, u16 feature, i64 id, u64 key_hash) {
  i32 lane = lane_number(), at = lane % TILE;
  u64 bucket = active ? range_of(key_hash, index.num_buckets) : 0;
  i64 first = (i64)bucket * WIDTH + at * 16, slot = NO_SLOT;
  u32 hits = 0;
  if (active) hits = equal_digests(*(const uint4*)(index.digests + first), digest_of(key_hash));
  u32 found = 0;
  while (ballot(hits)) {
    if (hits) {
      i64 candidate = first + lowest_bit(hits);
      hits &= hits - 1;
      if (is_key_at(index, candidate, feature, id)) slot = candidate;
    }
    found = ballot(slot >= 0) >> (lane - at) & 0xff;
    if (found) hits = 0;
  }
  slot = from_lane(slot, found ? lane - at + lowest_bit(found) : lane);
  if (active && slot < 0 && index.elsewhere[bucket]) {
    i64 row = overflow_row_of(index, feature, id, key_hash);
    if (row >= 0) slot = index.num_slots() + row;
  }
  return slot;
}

INLINE i64* score_at(const Index& index, i64 slot) {
  i64 row = slot - index.num_slots();
  return row < 0 ? index.scores + slot : index.scores_O + row;
}

INLINE bool is_taken(const Index& index, i64 slot) {
  i64 row = slot - index.num_slots();
  return row < 0 ? index.digests[slot] != EMPTY : index.taken_O[row] != 0;
}

INLINE void key_at(const Index& index, i64 slot, u16& feature, i64& id) {
  i64 row = slot - index.num_slots();
  feature = row < 0 ? index.features[slot] : index.features_O[row];
  id = row < 0 ? index.ids[slot] : index.ids_O[row];
}

INLINE u64 key_hash_of_slot(const Index& index, i64 slot) {
  u16 feature;
  i64 id;
  key_at(index, slot, feature, id);
  return hash_key(feature, id);
}

// One bucket held by one warp, four slots a lane; what is written goes to memory and to the lane's copy.
struct HeldBucket {
  i64 first;  // this lane's first slot
  u32 digests;
  i64 scores[SLOTS_A_LANE];
  bool has_scores;
};

INLINE HeldBucket hold_bucket(const Index& index, i64 bucket) {
  HeldBucket held;
  held.first = bucket * WIDTH + lane_number() * SLOTS_A_LANE;
  held.digests = *(const u32*)(index.digests + held.first);
  held.has_scores = false;
  return held;
}

// The first slot without a key, or NO_SLOT; the same to all lanes.
INLINE i64 empty_slot(const HeldBucket& held) {
  u32 empty = equal_bytes(held.digests, EMPTY), lanes = ballot(empty);
  i64 slot = held.first + (empty ? lowest_bit(empty) : 0);
  return lanes ? from_lane(slot, lowest_bit(lanes)) : NO_SLOT;
}

// The slot with the lowest score word among those with a tick below protect_from, or NO_SLOT; where words tie the lower
// key hash, and where these tie the first. For a full bucket.
INLINE i64 victim_slot(const Index& index, HeldBucket& held, i64 protect_from) {
  if (!held.has_scores)
#pragma unroll
    for (i32 i = 0; i < SLOTS_A_LANE; i++) held.scores[i] = index.scores[held.first + i];
  held.has_scores = true;
  const i64 none = 0x7fffffffffffffffll;
  i64 lowest = none;
  bool may_go = false;
#pragma unroll
  for (i32 i = 0; i < SLOTS_A_LANE; i++)
    if (tick_of(held.scores[i]) < protect_from) may_go = true, lowest = min_of(lowest, held.scores[i]);
  if (!ballot(may_go)) return NO_SLOT;
  lowest = lowest_of_warp(lowest);
  u32 ties = 0;
#pragma unroll
  for (i32 i = 0; i < SLOTS_A_LANE; i++)
    if (held.scores[i] == lowest && tick_of(lowest) < protect_from) ties |= 1u << i;
  u32 lanes = ballot(ties);
  bool is_one = !ballot(ties & (ties - 1)) && !(lanes & (lanes - 1));
  i64 slot = held.first + (ties ? lowest_bit(ties) : 0);
  if (is_one) return from_lane(slot, lowest_bit(lanes));
  u64 key_hash = ~0ull;
  for (u32 left = ties; left; left &= left - 1) {
    i64 other = held.first + lowest_bit(left);
    u64 word = key_hash_at(index, other);
    if (left == ties || word < key_hash) key_hash = word, slot = other;
  }
  // as int64 with the top bit turned the order of uint64 is kept
  i64 key = (i64)(key_hash ^ (1ull << 63)), least = lowest_of_warp(ties ? key : none);
  lanes = ballot(ties && key == least);
  return from_lane(slot, lowest_bit(lanes));
}

// Writes a key into a slot of the held bucket: the lane that holds the slot does.
INLINE void put_key(const Index& index, HeldBucket& held, i64 slot, u16 feature, i64 id, u64 key_hash, i64 score) {
  i32 i = (i32)(slot - held.first);
  if (i >= 0 && i < SLOTS_A_LANE) {
    u32 digest = digest_of(key_hash);
    held.digests = (held.digests & ~(0xffu << 8 * i)) | digest << 8 * i;
#pragma unroll
    for (i32 j = 0; j < SLOTS_A_LANE; j++)  // no register array is indexed by what is not a constant
      if (j == i) held.scores[j] = score;
    index.digests[slot] = (u8)digest;
    index.features[slot] = feature;
    index.ids[slot] = id;
    index.scores[slot] = score;
  }
  __syncwarp();  // a later choice in this bucket may read the key through another lane
}
