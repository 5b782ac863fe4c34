// What the lanes of a warp do together. Every call is made by all 32 lanes, inactive ones included.
#pragma once
#include "portable.cuh"

INLINE u32 ballot(bool vote) { return __ballot_sync(EVERY_LANE, vote); }

template <class T>
INLINE T from_lane(T value, i32 lane) {
  return __shfl_sync(EVERY_LANE, value, lane);
}

INLINE i64 lowest_of_warp(i64 value) {
  for (i32 offset = LANES / 2; offset; offset /= 2)
    value = min_of(value, __shfl_xor_sync(EVERY_LANE, value, offset));
  return value;
}
