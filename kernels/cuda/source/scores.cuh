// The score word of a slot, int64: (priority << 40) | tick. A full bucket gives up the lowest word it may.
#pragma once
#include "portable.cuh"

#define TICK_BITS 40
#define TICK_MASK ((1ll << TICK_BITS) - 1)
#define HIGHEST_PRIORITY ((1ll << 23) - 1)
#define LOWEST_PRIORITY (-(1ll << 23))

INLINE i64 tick_of(i64 word) { return word & TICK_MASK; }
INLINE i64 with_tick(i64 word, i64 tick) { return (word & ~TICK_MASK) | tick; }
INLINE i64 with_priority(i64 word, i64 priority) {
  i64 clamped = min_of(max_of(priority, LOWEST_PRIORITY), HIGHEST_PRIORITY);
  return (i64)((u64)clamped << TICK_BITS) | tick_of(word);
}
