// Gradients summed by key, and one optimizer step a row. A group of threads has a row; its numbers stay in registers.
#include "bucket.cuh"
#include "gradients.cuh"
#include "optimizers.cuh"
#include "rounding.cuh"

// The sums of the parts of keys with more than LONG occurrences; a group looks at one window of positions.
extern "C" __global__ void sum_parts(BATCH_PARAMETERS, float* parts) {
  const Batch batch = BATCH_OF_PARAMETERS;
  i64 num = batch.offsets_U1[num_unique];
  for (i64 window = thread_number() / GROUP; window * LONG < num; window += num_threads() / GROUP) {
    i64 low = window * LONG, high = min_of(low + LONG, num);
    i64 here = last_key_before(batch, low + 1), next = last_key_before(batch, high);
    i64 first = batch.offsets_U1[here], last = batch.offsets_U1[here + 1];
    if (last - first > LONG) {
      i64 begin = first + (low - first + LONG - 1) / LONG * LONG;
      if (begin < min_of(high, last)) sum_part(batch, here, begin, parts);
    }
    if (next != here && batch.offsets_U1[next + 1] - batch.offsets_U1[next] > LONG)
      sum_part(batch, next, batch.offsets_U1[next], parts);
  }
}

INLINE Four squared(Four lanes, Four g) {
#pragma unroll
  for (i32 j = 0; j < VECTOR; j++) lanes.at[j] = lanes.at[j] + g.at[j] * g.at[j];
  return lanes;
}

// Keys start..stop; fresh_U gets the slots that were not DIRTY before, NO_SLOT elsewhere, by position less start. A row
// has state_stride numbers of own_states: the optimizer's, then the wide columns. The optimizer and what states it has are
// the compiler's: kernels/row_optimizers.py.
extern "C" __global__ void update_rows(INDEX_PARAMETERS, Value* values, i64* meta, float* own_states, i64 state_stride,
                                       const i64* slots_U, BATCH_PARAMETERS, const float* parts, const i64* last_seen_U,
                                       STEP_PARAMETERS, const float* corrections, u64 mixed_seed, i32 count_priority,
                                       i64 start, i64 stop, i64* fresh_U, u64* num_refused) {
  const Index index = INDEX_OF_PARAMETERS;
  const Batch batch = BATCH_OF_PARAMETERS;
  const Constants c = STEP_OF_PARAMETERS;
  const bool in_record = STATE_VECTORS == 1 && DIM == 1;
  const i64 width = in_record ? 2 * RECORD : state_stride;
  float* states = in_record ? (float*)meta + STATE_AT : own_states;
  bool leads = lane_number() % GROUP == 0;
  // all groups of a warp make the same number of rounds: they sum together
  i64 in_warp = LANES / GROUP, end = start + (stop - start + in_warp - 1) / in_warp * in_warp;
  for (i64 u = start + thread_number() / GROUP; u < end; u += num_threads() / GROUP) {
    i64 slot = u < stop ? slots_U[u] : NO_SLOT, first = 0, last = 0;
    if (slot >= 0) first = batch.offsets_U1[u], last = batch.offsets_U1[u + 1];
    bool active = first < last;
    i64* record = meta + slot * RECORD;
    Four sums[PIECES], squares_of_lanes = four_of(0.0f);
#pragma unroll
    for (i32 piece = 0; piece < PIECES; piece++) {
      i32 d = element_of(piece);
      sums[piece] = active && d < DIM ? sum_of_key(batch, parts, first, last, d) : four_of(0.0f);
      squares_of_lanes = squared(squares_of_lanes, sums[piece]);
    }
    float squares = total_of(squares_of_lanes), factor = 1.0f;
    bool is_finite = squares - squares == 0.0f;
    if (c.clip_norm > 0.0f) {
      if (sqrtf(squares) > c.clip_norm) factor = c.clip_norm / sqrtf(squares);
      squares_of_lanes = four_of(0.0f);
#pragma unroll
      for (i32 piece = 0; piece < PIECES; piece++) {
        Four g = sums[piece];
#pragma unroll
        for (i32 j = 0; j < VECTOR; j++) g.at[j] = g.at[j] * factor;
        squares_of_lanes = squared(squares_of_lanes, g);
      }
      float clipped = total_of(squares_of_lanes);
      if (factor != 1.0f) squares = clipped;
    }
    bool is_new = false;
    if (SEES_NEW_ROWS) {
      squares_of_lanes = four_of(0.0f);
#pragma unroll
      for (i32 piece = 0; piece < PIECES; piece++) {
        i32 d = element_of(piece);
        if (!active || d >= DIM) continue;
        Four n = load_four(states + slot * width + (STATE_VECTORS - 1) * DIM, d);
#pragma unroll
        for (i32 j = 0; j < VECTOR; j++) squares_of_lanes.at[j] = squares_of_lanes.at[j] + n.at[j];
      }
      is_new = total_of(squares_of_lanes) == 0.0f;
    }
    i64 count = 0, flags = 0;
    float scalar = 0.0f;
    RowStep step = {c.lr, 1.0f, is_new};
    u64 bits = 0;
    if (active) {
      count = record[0] + (last - first), flags = record[2], scalar = ((float*)record)[STATE_AT];
      OPTIMIZER::begin(step, scalar, squares / (float)DIM, c, corrections);
      if (HALF) bits = step_bits(key_hash_of_slot(index, slot), mixed_seed, count);
    }
    __syncwarp();  // the record is read by all of the group before its leader writes it
    if (!active) {
      if (leads && u < stop) fresh_U[u - start] = NO_SLOT;
      continue;
    }
#pragma unroll
    for (i32 piece = 0; piece < PIECES; piece++) {
      i32 d = element_of(piece);
      if (!is_finite || d >= DIM) continue;
      Four row = load_four(values + slot * DIM, d), one, two;
      float* state = states + slot * width;
      if (in_record) one.at[0] = state[0];
      if (STATE_VECTORS >= 1 && !in_record) one = load_four(state, d);
      if (STATE_VECTORS == 2) two = load_four(state + DIM, d);
#pragma unroll
      for (i32 j = 0; j < VECTOR; j++) {
        float g = sums[piece].at[j] * factor, kept = row.at[j] * c.keep;
        row.at[j] = OPTIMIZER::move(kept, g, one.at[j], two.at[j], step, c);
      }
      if (in_record) state[0] = one.at[0];
      if (STATE_VECTORS >= 1 && !in_record) store_four(state, d, one);
      if (STATE_VECTORS == 2) store_four(state + DIM, d, two);
      store_rounded(values + slot * DIM, d, row, bits);
    }
    if (!leads) continue;
    record[0] = count;
    record[1] = max_of(record[1], last_seen_U[u]);
    record[2] = flags | DIRTY | NEEDS_SPILL;
    if (is_finite && STATE_SCALARS) ((float*)record)[STATE_AT] = scalar;
    if (!is_finite) atomicAdd(num_refused, 1ull);
    if (count_priority) *score_at(index, slot) = with_priority(*score_at(index, slot), count);
    fresh_U[u - start] = flags & DIRTY ? NO_SLOT : slot;
  }
}
