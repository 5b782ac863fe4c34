// What lets the same text be device code and, under tests/support/gpu_emulation/simt.h, host C++: names of types, one macro.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#ifdef __CUDACC__
#define INLINE __device__ __forceinline__
#else
#define INLINE inline
#endif

#define LANES 32
#define EVERY_LANE 0xffffffffu

INLINE i64 thread_number() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
INLINE i64 num_threads() { return (i64)gridDim.x * blockDim.x; }
INLINE i32 lane_number() { return threadIdx.x % LANES; }
INLINE i32 lowest_bit(u32 bits) { return __ffs((i32)bits) - 1; }

INLINE i64 min_of(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 max_of(i64 a, i64 b) { return a > b ? a : b; }

INLINE u32 bits_of_float(float number) { return __float_as_uint(number); }
INLINE float float_of_bits(u32 bits) { return __uint_as_float(bits); }
