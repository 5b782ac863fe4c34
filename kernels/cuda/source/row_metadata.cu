// What is known of rows beside their values: records and optimizer states.
#include "compact.cuh"
#include "portable.cuh"

#define RECORD 4     // words: count, last-seen, flags, and what follows
#define STATE_AT 6   // a float32 of state, counted in float32
#define CLAIM_AT 7   // scratch between two passes, counted in uint32
#define DIRTY 1ll

// Number s of a row's state: number `recorded` is in the record (none where that is the width), the others are in an
// array of their own, `stride` numbers a row.
INLINE float* state_at(i64* meta, float* states, i64 stride, i64 recorded, i64 slot, i64 s) {
  if (s == recorded) return (float*)meta + slot * RECORD * 2 + STATE_AT;
  return states + slot * stride + (s < recorded ? s : s - 1);
}

extern "C" __global__ void read_states(i64* meta, float* states, i64 stride, i64 recorded, const i64* slots_N, i64 num,
                                       i64 width, float* states_NS) {
  for (i64 i = thread_number(); i < num * width; i += num_threads()) {
    i64 slot = slots_N[i / width], s = i % width;
    states_NS[i] = slot < 0 ? 0.0f : *state_at(meta, states, stride, recorded, slot, s);
  }
}

extern "C" __global__ void scatter_states(i64* meta, float* states, i64 stride, i64 recorded, const i64* slots_N,
                                          i64 num, i64 width, const float* states_NS) {
  for (i64 i = thread_number(); i < num * width; i += num_threads()) {
    i64 slot = slots_N[i / width], s = i % width;
    if (slot >= 0) *state_at(meta, states, stride, recorded, slot, s) = states_NS[i];
  }
}

extern "C" __global__ void read_records(const i64* meta, const i64* slots_N, i64 num, i64* counts_N, i64* last_seen_N,
                                        i64* flags_N) {
  for (i64 n = thread_number(); n < num; n += num_threads()) {
    const i64* record = meta + slots_N[n] * RECORD;
    bool is_row = slots_N[n] >= 0;
    counts_N[n] = is_row ? record[0] : 0;
    last_seen_N[n] = is_row ? record[1] : 0;
    flags_N[n] = is_row ? record[2] : 0;
  }
}

extern "C" __global__ void scatter_records(i64* meta, const i64* slots_N, i64 num, const i64* counts_N,
                                           const i64* last_seen_N, const i64* flags_N) {
  for (i64 n = thread_number(); n < num; n += num_threads()) {
    if (slots_N[n] < 0) continue;
    i64* record = meta + slots_N[n] * RECORD;
    record[0] = counts_N[n], record[1] = last_seen_N[n], record[2] = flags_N[n];
  }
}

extern "C" __global__ void set_flags(i64* meta, const i64* slots_N, i64 num, i64 flags) {
  for (i64 n = thread_number(); n < num; n += num_threads())
    if (slots_N[n] >= 0) meta[slots_N[n] * RECORD + 2] = flags;
}

INLINE u32* claim_of(i64* meta, i64 slot) { return (u32*)meta + slot * RECORD * 2 + CLAIM_AT; }

// A slot given twice is listed once, at its first position: the lowest position claims it. Three passes.
extern "C" __global__ void open_claims(i64* meta, const i64* slots_N, i64 num) {
  for (i64 n = thread_number(); n < num; n += num_threads())
    if (slots_N[n] >= 0) *claim_of(meta, slots_N[n]) = 0xffffffffu;
}

extern "C" __global__ void claim_touched(i64* meta, const i64* slots_N, i64 num) {
  for (i64 n = thread_number(); n < num; n += num_threads())
    if (slots_N[n] >= 0 && meta[slots_N[n] * RECORD + 2] & DIRTY) atomicMin(claim_of(meta, slots_N[n]), (u32)n);
}

extern "C" __global__ void count_touched(i64* meta, const i64* slots_N, i64 num, i64 chunk, i64* counts) {
  count_kept([&](i64 n) { return slots_N[n] >= 0 && *claim_of(meta, slots_N[n]) == (u32)n; }, num, chunk, counts);
}

extern "C" __global__ void list_touched(i64* meta, const i64* slots_N, i64 num, i64 chunk, const i64* counts,
                                        i64* slots_M, i64* num_touched) {
  auto is_claimed = [&](i64 n) { return slots_N[n] >= 0 && *claim_of(meta, slots_N[n]) == (u32)n; };
  auto write = [&](i64 n, i64 rank) {
    slots_M[rank] = slots_N[n];
    meta[slots_N[n] * RECORD + 2] &= ~DIRTY;
  };
  write_kept(is_claimed, write, num, chunk, counts, num_touched);
}

// The slots that were not DIRTY before, out of a list with NO_SLOT for the others.
extern "C" __global__ void count_fresh(const i64* fresh_U, i64 num, i64 chunk, i64* counts) {
  count_kept([&](i64 u) { return fresh_U[u] >= 0; }, num, chunk, counts);
}

extern "C" __global__ void list_fresh(const i64* fresh_U, i64 num, i64 chunk, const i64* counts, i64* slots_N,
                                      i64* num_fresh) {
  write_kept([&](i64 u) { return fresh_U[u] >= 0; }, [&](i64 u, i64 rank) { slots_N[rank] = fresh_U[u]; }, num, chunk,
             counts, num_fresh);
}
