// A slot for every key that has none: the second half of find_or_insert, without locks and without retries.
//
// Launches on one stream, in this order:
// 1. `locate` (find.cu) reads digests, ids and features, which nothing writes meanwhile, and touches the keys present.
//    A key is present once and unique in the call, so each score word has one writer.
// 2. The other keys are sorted by bucket. The sort is stable: a bucket's keys are adjacent, in the order of the batch.
// 3. `place`: the warp that sees a bucket's first key inserts all keys of that bucket, one after another, with digests
//    and scores in registers. A bucket has one first key, hence one writer, and no other warp reads it. `__syncwarp`
//    between two keys makes what one lane wrote visible to the others.
// 4. `place_elsewhere`, one block, only where every slot of a bucket was protected: those keys, in the order of the
//    batch, get the free overflow rows, lowest first. Only the places of their hash table are contended
//    (compare-and-swap); which place a row gets depends on who wins, whether it is found does not.
// 5. New keys and victims are compacted in the order of the batch by counting.
//
// So the same calls give the same bytes; with a lock per bucket the keys of a bucket would be inserted in the order in
// which warps win. The price is the sort, and that a million keys of one bucket are inserted by one warp.
#include "bucket.cuh"
#include "compact.cuh"

#define NO_HOME 0x7fffffff

// What becomes of the keys, by their position in the batch.
struct Outcome {
  i64* slots_U;
  u8* is_new_U;
  u8* is_crowded_U;  // every slot of the bucket is protected: the overflow area's turn
  i64* victim_slots_U;
  u16* victim_features_U;
  i64* victim_ids_U;
};

// All keys of one bucket, in the order of the batch, by one warp.
INLINE void insert_bucket(const Index& index, const Outcome& outcome, const u16* features_U, const i64* ids_U,
                   const u64* key_hash_U, const i32* homes_K, const i64* order_K, i64 num, i64 first, i64 tick,
                   i64 protect_from, u32* num_overflowed) {
  i32 home = homes_K[first];
  HeldBucket held = hold_bucket(index, home);
  for (i64 k = first; k < num && homes_K[k] == home; k++) {
    i64 u = order_K[k], slot = empty_slot(held);
    bool is_victim = slot < 0;
    if (is_victim) slot = victim_slot(index, held, protect_from);
    if (slot < 0) {
      if (lane_number() == 0) outcome.is_crowded_U[u] = 1, atomicAdd(num_overflowed, 1u);
      continue;
    }
    if (lane_number() == 0) {
      if (is_victim) {
        outcome.victim_slots_U[u] = slot;
        outcome.victim_features_U[u] = index.features[slot];
        outcome.victim_ids_U[u] = index.ids[slot];
      }
      outcome.slots_U[u] = slot;
      outcome.is_new_U[u] = 1;
    }
    __syncwarp();  // the victim's key is read before it is written over
    put_key(index, held, slot, features_U[u], ids_U[u], key_hash_U[u], tick);
  }
}

// homes_K ascending, order_K their positions in the batch; a warp looks at 32 and settles every bucket that begins there.
extern "C" __global__ void place(INDEX_PARAMETERS, const u16* features_U, const i64* ids_U, const u64* key_hash_U,
                                 const i32* homes_K, const i64* order_K, i64 num, i64 tick, i64 protect_from,
                                 i64* slots_U, u8* is_new_U, u8* is_crowded_U, i64* victim_slots_U,
                                 u16* victim_features_U, i64* victim_ids_U, u32* num_overflowed) {
  const Index index = INDEX_OF_PARAMETERS;
  const Outcome outcome = {slots_U, is_new_U, is_crowded_U, victim_slots_U, victim_features_U, victim_ids_U};
  i64 step = num_threads() / LANES * LANES;
  for (i64 from = thread_number() / LANES * LANES; from < num; from += step) {
    i64 k = from + lane_number();
    i32 home = k < num ? homes_K[k] : NO_HOME;
    bool begins = home != NO_HOME && (k == 0 || homes_K[k - 1] != home);
    for (u32 begun = ballot(begins); begun; begun &= begun - 1)
      insert_bucket(index, outcome, features_U, ids_U, key_hash_U, homes_K, order_K, num, from + lowest_bit(begun), tick,
             protect_from, num_overflowed);
  }
}

// Enters an overflow row into the hash table, beside other threads that do the same.
INLINE void enter_row(const Index& index, i64 row) {
  u64 key_hash = hash_key(index.features_O[row], index.ids_O[row]);
  u64 place = key_hash & index.place_mask;
  while (atomicCAS(index.places + place, -1, (i32)row) != -1) place = (place + 1) & index.place_mask;
}

// The crowded keys in the order of the batch onto the free overflow rows, lowest first, while there are any.
// One block: it has work only where a bucket's slots are all protected. free_O is scratch.
extern "C" __global__ void place_elsewhere(INDEX_PARAMETERS, const u16* features_U, const i64* ids_U,
                                           const u64* key_hash_U, i64 num, i64 tick, const u8* is_crowded_U,
                                           const u32* num_overflowed, i64* slots_U, u8* is_new_U, i32* free_O,
                                           i64* counts_1, i64* num_kept) {
  const Index index = INDEX_OF_PARAMETERS;
  if (*num_overflowed == 0) return;
  if (threadIdx.x == 0) counts_1[0] = 0;
  __syncthreads();
  auto is_free = [&](i64 row) { return index.taken_O[row] == 0; };
  write_kept(is_free, [&](i64 row, i64 rank) { free_O[rank] = (i32)row; }, index.num_overflow,
             max_of(index.num_overflow, 1), counts_1, num_kept);
  __syncthreads();
  i64 num_free = *num_kept;
  __syncthreads();
  auto is_crowded = [&](i64 u) { return is_crowded_U[u] != 0; };
  auto enter = [&](i64 u, i64 rank) {
    if (rank >= num_free) return;
    i64 row = free_O[rank];
    index.features_O[row] = features_U[u];
    index.ids_O[row] = ids_U[u];
    index.scores_O[row] = tick;
    index.taken_O[row] = 1;
    enter_row(index, row);
    atomicAdd(index.elsewhere + range_of(key_hash_U[u], index.num_buckets), 1u);
    slots_U[u] = index.num_slots() + row;
    is_new_U[u] = 1;
  };
  write_kept(is_crowded, enter, num, num, counts_1, num_kept);
}

// Rebuild the overflow area's hash table after rows left it or its size changed. One block.
extern "C" __global__ void rebuild(INDEX_PARAMETERS, u32* num_left) {
  const Index index = INDEX_OF_PARAMETERS;
  if (*num_left == 0) return;
  for (u64 place = threadIdx.x; place <= index.place_mask; place += blockDim.x) index.places[place] = -1;
  __syncthreads();
  for (i64 row = threadIdx.x; row < index.num_overflow; row += blockDim.x)
    if (index.taken_O[row]) enter_row(index, row);
  __syncthreads();
  if (threadIdx.x == 0) *num_left = 0;
}

extern "C" __global__ void count_new(const u8* is_new_U, i64 num, i64 chunk, i64* counts) {
  count_kept([&](i64 u) { return is_new_U[u] != 0; }, num, chunk, counts);
}

extern "C" __global__ void list_new(const u8* is_new_U, i64 num, i64 chunk, const i64* counts, i64* new_N, i64* num_new) {
  write_kept([&](i64 u) { return is_new_U[u] != 0; }, [&](i64 u, i64 rank) { new_N[rank] = u; }, num, chunk, counts,
             num_new);
}

extern "C" __global__ void count_victims(const i64* victim_slots_U, const u16*, const i64*, i64 num, i64 chunk,
                                         i64* counts) {
  count_kept([&](i64 u) { return victim_slots_U[u] >= 0; }, num, chunk, counts);
}

extern "C" __global__ void list_victims(const i64* victim_slots_U, const u16* victim_features_U,
                                        const i64* victim_ids_U, i64 num, i64 chunk, const i64* counts, i64* slots_V,
                                        u16* features_V, i64* ids_V, i64* num_victims) {
  auto write = [&](i64 u, i64 rank) {
    slots_V[rank] = victim_slots_U[u];
    features_V[rank] = victim_features_U[u];
    ids_V[rank] = victim_ids_U[u];
  };
  write_kept([&](i64 u) { return victim_slots_U[u] >= 0; }, write, num, chunk, counts, num_victims);
}
