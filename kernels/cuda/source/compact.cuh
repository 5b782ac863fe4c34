// Those of many things that are wanted, in their order: one pass counts by block, another writes. Nothing is sorted,
// nothing depends on which block runs first.
#pragma once
#include "warp.cuh"

#define MOST_WARPS 32

INLINE i64 chunk_stop(i64 num, i64 chunk) { return min_of((i64)(blockIdx.x + 1) * chunk, num); }

// Into counts[block]: how many of the block's chunk of 0..num are wanted.
template <class Keep>
INLINE void count_kept(Keep keep, i64 num, i64 chunk, i64* counts) {
  __shared__ u64 total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  u64 mine = 0;
  for (i64 i = (i64)blockIdx.x * chunk + threadIdx.x; i < chunk_stop(num, chunk); i += blockDim.x) mine += keep(i);
  atomicAdd(&total, mine);
  __syncthreads();
  if (threadIdx.x == 0) counts[blockIdx.x] = (i64)total;
}

// write(i, rank) for every wanted i, with its rank among them; the number of them to *num_kept.
template <class Keep, class Write>
INLINE void write_kept(Keep keep, Write write, i64 num, i64 chunk, const i64* counts, i64* num_kept) {
  __shared__ u64 before;
  __shared__ u32 in_warps[MOST_WARPS];
  if (threadIdx.x == 0) before = 0;
  __syncthreads();
  u64 mine = 0;
  for (i64 block = threadIdx.x; block < blockIdx.x; block += blockDim.x) mine += (u64)counts[block];
  atomicAdd(&before, mine);
  __syncthreads();
  i64 base = (i64)before, stop = chunk_stop(num, chunk);
  i32 warp = threadIdx.x / LANES, num_warps = blockDim.x / LANES;
  for (i64 tile = (i64)blockIdx.x * chunk; tile < stop; tile += blockDim.x) {
    i64 i = tile + threadIdx.x;
    bool kept = i < stop && keep(i);
    u32 votes = ballot(kept);
    if (lane_number() == 0) in_warps[warp] = __popc(votes);
    __syncthreads();
    i64 rank = base;
    for (i32 w = 0; w < num_warps; w++) {
      if (w < warp) rank += in_warps[w];
      base += in_warps[w];
    }
    if (kept) write(i, rank + __popc(votes & ((1u << lane_number()) - 1)));
    __syncthreads();
  }
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) *num_kept = base;
}
