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

// Rows of a store as the update sees them.
struct Rows {
  Value* values;
  i64* meta;
  float* states;
  i64 state_stride;  // numbers of `states` a row has: the optimizer's, then the wide columns
};

#define UPDATE_PARAMETERS                                                                                    \
  INDEX_PARAMETERS, Value *values, i64 *meta, float *states, i64 state_stride, const i64 *slots_U,          \
      BATCH_PARAMETERS, const float *parts, const i64 *last_seen_U, STEP_PARAMETERS, const float *corrections, u64 mixed_seed, \
      i32 count_priority, i64 start, i64 stop, i64 *fresh_U, u64 *num_refused
#define UPDATE_OF_PARAMETERS                                                                          \
  INDEX_OF_PARAMETERS, {values, meta, states, state_stride}, slots_U, BATCH_OF_PARAMETERS, parts, last_seen_U, \
      STEP_OF_PARAMETERS, corrections, mixed_seed, count_priority, start, stop, fresh_U, num_refused

INLINE Four squared(Four lanes, Four g) {
#pragma unroll
  for (i32 j = 0; j < VECTOR; j++) lanes.at[j] = lanes.at[j] + g.at[j] * g.at[j];
  return lanes;
}

// Keys start..stop; fresh_U gets the slots that were not DIRTY before, NO_SLOT elsewhere, by position less start.
template <i32 OPTIMIZER>
INLINE void update_rows(const Index& index, const Rows& rows, const i64* slots_U, const Batch& batch,
                        const float* parts, const i64* last_seen_U, const Constants& c, const float* corrections,
                        u64 mixed_seed, i32 count_priority, i64 start, i64 stop, i64* fresh_U, u64* num_refused) {
  const bool in_record = OPTIMIZER == ADAGRAD && DIM == 1;
  const i64 width = in_record ? 2 * RECORD : rows.state_stride;
  float* states = in_record ? (float*)rows.meta + STATE_AT : rows.states;
  bool leads = lane_number() % GROUP == 0;
  // all groups of a warp make the same number of rounds: they sum together
  i64 in_warp = LANES / GROUP, end = start + (stop - start + in_warp - 1) / in_warp * in_warp;
  for (i64 u = start + thread_number() / GROUP; u < end; u += num_threads() / GROUP) {
    i64 slot = u < stop ? slots_U[u] : NO_SLOT, first = 0, last = 0;
    if (slot >= 0) first = batch.offsets_U1[u], last = batch.offsets_U1[u + 1];
    bool active = first < last;
    i64* record = rows.meta + slot * RECORD;
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
    if (OPTIMIZER == FTRL) {
      squares_of_lanes = four_of(0.0f);
#pragma unroll
      for (i32 piece = 0; piece < PIECES; piece++) {
        i32 d = element_of(piece);
        if (!active || d >= DIM) continue;
        Four n = load_four(states + slot * width + DIM, d);
#pragma unroll
        for (i32 j = 0; j < VECTOR; j++) squares_of_lanes.at[j] = squares_of_lanes.at[j] + n.at[j];
      }
      is_new = total_of(squares_of_lanes) == 0.0f;
    }
    i64 count = 0, flags = 0;
    float scalar = 0.0f, rate = c.lr, correction2 = 1.0f;
    u64 bits = 0;
    if (active) {
      count = record[0] + (last - first), flags = record[2], scalar = ((float*)record)[STATE_AT];
      if (OPTIMIZER == ROWWISE_ADAGRAD) {
        scalar = scalar + squares / (float)DIM;
        rate = c.lr / (sqrtf(scalar) + c.eps);
      }
      if (OPTIMIZER == ADAM) {
        scalar = scalar + 1.0f;
        rate = c.lr * correction_of(corrections, 0, scalar, c.exact_beta1);
        correction2 = correction_of(corrections, 1, scalar, c.exact_beta2);
      }
      if (HALF) bits = step_bits(mixed_of_slot(index, slot), mixed_seed, count);
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
      Four row = load_four(rows.values + slot * DIM, d), one, two;
      float* state = states + slot * width;
      if (in_record) one.at[0] = state[0];
      if (OPTIMIZER >= ADAM || (OPTIMIZER == ADAGRAD && !in_record)) one = load_four(state, d);
      if (OPTIMIZER >= ADAM) two = load_four(state + DIM, d);
#pragma unroll
      for (i32 j = 0; j < VECTOR; j++) {
        float g = sums[piece].at[j] * factor, kept = row.at[j] * c.keep;
        if (OPTIMIZER == SGD || OPTIMIZER == ROWWISE_ADAGRAD) row.at[j] = kept - g * rate;
        if (OPTIMIZER == ADAGRAD) row.at[j] = adagrad(kept, g, one.at[j], c);
        if (OPTIMIZER == ADAM) row.at[j] = adam(kept, g, one.at[j], two.at[j], rate, correction2, c);
        if (OPTIMIZER == FTRL) row.at[j] = ftrl(kept, g, one.at[j], two.at[j], is_new, c);
      }
      if (in_record) state[0] = one.at[0];
      if (OPTIMIZER >= ADAM || (OPTIMIZER == ADAGRAD && !in_record)) store_four(state, d, one);
      if (OPTIMIZER >= ADAM) store_four(state + DIM, d, two);
      store_rounded(rows.values + slot * DIM, d, row, bits);
    }
    if (!leads) continue;
    record[0] = count;
    record[1] = max_of(record[1], last_seen_U[u]);
    record[2] = flags | DIRTY | NEEDS_SPILL;
    if (is_finite && (OPTIMIZER == ROWWISE_ADAGRAD || OPTIMIZER == ADAM)) ((float*)record)[STATE_AT] = scalar;
    if (!is_finite) atomicAdd(num_refused, 1ull);
    if (count_priority) *score_at(index, slot) = with_priority(*score_at(index, slot), count);
    fresh_U[u - start] = flags & DIRTY ? NO_SLOT : slot;
  }
}

// ONLY names the one optimizer that is wanted: the others need not be compiled.
#if !defined(ONLY) || ONLY == SGD
extern "C" __global__ void update_sgd(UPDATE_PARAMETERS) { update_rows<SGD>(UPDATE_OF_PARAMETERS); }
#endif
#if !defined(ONLY) || ONLY == ADAGRAD
extern "C" __global__ void update_adagrad(UPDATE_PARAMETERS) { update_rows<ADAGRAD>(UPDATE_OF_PARAMETERS); }
#endif
#if !defined(ONLY) || ONLY == ROWWISE_ADAGRAD
extern "C" __global__ void update_rowwise_adagrad(UPDATE_PARAMETERS) {
  update_rows<ROWWISE_ADAGRAD>(UPDATE_OF_PARAMETERS);
}
#endif
#if !defined(ONLY) || ONLY == ADAM
extern "C" __global__ void update_adam(UPDATE_PARAMETERS) { update_rows<ADAM>(UPDATE_OF_PARAMETERS); }
#endif
#if !defined(ONLY) || ONLY == FTRL
extern "C" __global__ void update_ftrl(UPDATE_PARAMETERS) { update_rows<FTRL>(UPDATE_OF_PARAMETERS); }
#endif
