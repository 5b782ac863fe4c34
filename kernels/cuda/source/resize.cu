// Another number of buckets: which keys would find no room, and every key in its new bucket. A warp has a new bucket.
//
// Buckets are ranges of key hashes in ascending order, so those that may hold a new bucket's keys lie together.
#include "bucket.cuh"
#include "compact.cuh"

// The slots whose buckets may hold keys of bucket `target` of num_new.
INLINE void sources_of(const Index& index, u64 target, u64 num_new, i64& start, i64& stop) {
  u64 low = ((target << 32) + num_new - 1) / num_new, high = (((target + 1) << 32) + num_new - 1) / num_new;
  start = (i64)((low * index.num_buckets) >> 32) * WIDTH;
  stop = (i64)((((high - 1) * index.num_buckets) >> 32) + 1) * WIDTH;
}

INLINE bool belongs(const Index& index, i64 slot, u64 target, u64 num_new, u64& key_hash) {
  if (index.digests[slot] == EMPTY) return false;
  key_hash = key_hash_at(index, slot);
  return range_of(key_hash, num_new) == target;
}

// Marks those that are not among the highest 128 of their new bucket by score word, key hash and slot.
extern "C" __global__ void mark_crowded(INDEX_PARAMETERS, u64 num_new, i64 first, i64 last, u8* marks) {
  const Index index = INDEX_OF_PARAMETERS;
  for (i64 target = first + thread_number() / LANES; target < last; target += num_threads() / LANES) {
    i64 start, stop, num = 0;
    u64 key_hash, other_key_hash;
    sources_of(index, (u64)target, num_new, start, stop);
    for (i64 slot = start + lane_number(); slot < stop; slot += LANES)
      num += __popc(ballot(belongs(index, slot, (u64)target, num_new, key_hash)));
    if (num <= WIDTH) continue;
    for (i64 slot = start + lane_number(); slot < stop; slot += LANES) {
      if (!belongs(index, slot, (u64)target, num_new, key_hash)) continue;
      i64 score = index.scores[slot], num_higher = 0;
      for (i64 other = start; other < stop; other++) {
        if (!belongs(index, other, (u64)target, num_new, other_key_hash)) continue;
        i64 other_score = index.scores[other];
        num_higher += other_score != score   ? other_score > score
                      : other_key_hash != key_hash ? other_key_hash > key_hash
                                             : other > slot;
      }
      if (num_higher >= WIDTH) marks[slot] = 1;
    }
  }
}

extern "C" __global__ void count_crowded(const u8* marks, i64 num, i64 chunk, i64* counts) {
  count_kept([&](i64 slot) { return marks[slot] != 0; }, num, chunk, counts);
}

extern "C" __global__ void list_crowded(const u8* marks, i64 num, i64 chunk, const i64* counts, i64* slots_N,
                                        i64* num_overflowed) {
  write_kept([&](i64 slot) { return marks[slot] != 0; }, [&](i64 slot, i64 rank) { slots_N[rank] = slot; }, num, chunk,
             counts, num_overflowed);
}

// Fills new, empty buckets; from_N gets the old slot of each new one, NO_SLOT where it stays empty. Every key has room.
extern "C" __global__ void refill(INDEX_PARAMETERS, u64 num_new, u8* new_digests, u16* new_features, i64* new_ids,
                                  i64* new_scores, i64* from_N) {
  const Index index = INDEX_OF_PARAMETERS;
  for (i64 target = thread_number() / LANES; target < (i64)num_new; target += num_threads() / LANES) {
    i64 start, stop, num = 0;
    u64 key_hash;
    sources_of(index, (u64)target, num_new, start, stop);
    for (i32 lane = lane_number(); lane < WIDTH; lane += LANES) from_N[target * WIDTH + lane] = NO_SLOT;
    __syncwarp();
    for (i64 slot = start + lane_number(); slot < stop; slot += LANES) {
      bool is_ours = belongs(index, slot, (u64)target, num_new, key_hash);
      u32 ours = ballot(is_ours);
      i64 to = target * WIDTH + num + __popc(ours & ((1u << lane_number()) - 1));
      num += __popc(ours);
      if (!is_ours) continue;
      new_digests[to] = (u8)digest_of(key_hash);
      new_features[to] = index.features[slot];
      new_ids[to] = index.ids[slot];
      new_scores[to] = index.scores[slot];
      from_N[to] = slot;
    }
  }
}

// The keys in the overflow area, counted by their buckets.
extern "C" __global__ void count_elsewhere(INDEX_PARAMETERS) {
  const Index index = INDEX_OF_PARAMETERS;
  for (i64 row = thread_number(); row < index.num_overflow; row += num_threads())
    if (index.taken_O[row])
      atomicAdd(index.elsewhere + range_of(hash_key(index.features_O[row], index.ids_O[row]), index.num_buckets), 1u);
}

// Rows of so many half words to their new slots, from their previous slots or, without a list, from the same ones; the
// overflow rows stay behind the slots.
extern "C" __global__ void move_rows(const u16* source, i64 width, i64 old_slots, const i64* from_N, i64 num_slots,
                                     i64 num_overflow, u16* to) {
  for (i64 i = thread_number(); i < (num_slots + num_overflow) * width; i += num_threads()) {
    i64 row = i / width, from = row >= num_slots ? old_slots + row - num_slots : from_N ? from_N[row] : row;
    if (from >= 0) to[i] = source[from * width + i % width];
  }
}
