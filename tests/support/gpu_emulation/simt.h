// A GPU of one thread, for tests: runs the kernels of kernels/cuda as host C++, each thread of a block a fiber.
// Warp calls and barriers wait for one another as on the device. What is undefined there (lanes that meet at different
// calls, or left before one) is an error here. Lanes and blocks take their turns in an order that a seed shuffles.
#pragma once
#ifdef __APPLE__
#define _XOPEN_SOURCE 700
#endif
#include <ucontext.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define __global__
#define __device__
#define __restrict__
#define __shared__ static
#define __launch_bounds__(...)

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };

namespace simt {

constexpr int lanes = 32, stack_bytes = 1 << 16;

struct Warp {
  unsigned long long values[2][lanes];
  int calls[2][lanes];
};

struct Thread {
  ucontext_t context;
  char* stack;
  unsigned number;
  unsigned warp_calls, barriers;
  bool done;
};

struct Dim { unsigned x; };

constexpr unsigned most_threads = 1024;

struct Block {
  Thread threads[most_threads];
  Warp warps[most_threads / lanes];
  void (*body)(const void*);
  const void* argument;  // what the body is given
  ucontext_t scheduler;
  Thread* now;
  Dim block, grid, block_dim;
  const char* failure;
  bool moved;
};

// A permutation of 0..num-1, another for each seed.
struct Shuffled {
  unsigned* turns;
  Shuffled(unsigned num, unsigned seed) : turns((unsigned*)malloc(num * sizeof(unsigned))) {
    for (unsigned i = 0; i < num; i++) {
      seed = seed * 1664525u + 1013904223u;
      unsigned at = (seed >> 8) % (i + 1);
      turns[i] = turns[at];
      turns[at] = i;
    }
  }
  ~Shuffled() { free(turns); }
};

inline Block& machine() {
  static Block block;
  return block;
}

inline void yield() {
  Block& m = machine();
  swapcontext(&m.now->context, &m.scheduler);
}

inline void fail(const char* why) {
  machine().failure = why;
  yield();
}

// Waits until every lane of the warp has made this call; what each of them brought.
inline const unsigned long long* meet(int call, unsigned long long value) {
  Block& m = machine();
  Thread& t = *m.now;
  Warp& warp = m.warps[t.number / lanes];
  unsigned turn = t.warp_calls++, lane = t.number % lanes, first = t.number - lane;
  warp.values[turn & 1][lane] = value;
  warp.calls[turn & 1][lane] = call;
  m.moved = true;
  for (unsigned other = first; other < first + lanes; other++)
    while (m.threads[other].warp_calls <= turn) {
      if (m.threads[other].done) fail("a lane left before the others of its warp made a call");
      yield();
    }
  for (int other = 0; other < lanes; other++)
    if (warp.calls[turn & 1][other] != call) fail("the lanes of a warp meet at different calls");
  return warp.values[turn & 1];
}

inline void barrier() {
  Block& m = machine();
  unsigned turn = m.now->barriers++;
  m.moved = true;
  for (unsigned other = 0; other < m.block_dim.x; other++)
    while (m.threads[other].barriers <= turn) {
      if (m.threads[other].done) fail("a thread left before the others reached a barrier");
      yield();
    }
}

inline void enter() {
  machine().body(machine().argument);
  machine().now->done = true;
  machine().moved = true;
  yield();
}

inline void run_block(unsigned seed) {
  Block& m = machine();
  unsigned num = m.block_dim.x;
  for (unsigned i = 0; i < num; i++) {
    Thread& t = m.threads[i];
    t.number = i, t.warp_calls = t.barriers = 0, t.done = false;
    if (!t.stack) t.stack = (char*)malloc(stack_bytes);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack;
    t.context.uc_stack.ss_size = stack_bytes;
    t.context.uc_link = nullptr;
    makecontext(&t.context, enter, 0);
  }
  Shuffled order(num, seed);
  for (bool left = true; left;) {
    left = m.moved = false;
    for (unsigned i = 0; i < num; i++) {
      Thread& t = m.threads[order.turns[i]];
      if (t.done) continue;
      left = true;
      m.now = &t;
      swapcontext(&m.scheduler, &t.context);
      if (m.failure) return;
    }
    if (left && !m.moved) {
      m.failure = "every thread waits for another";
      return;
    }
  }
}

inline const char* run(void (*body)(const void*), const void* argument, unsigned grid, unsigned block, unsigned seed) {
  Block& m = machine();
  if (block % lanes || !block || block > most_threads || !grid) return "a block is whole warps, a grid at least a block";
  m.body = body, m.argument = argument, m.grid.x = grid, m.block_dim.x = block, m.failure = nullptr;
  Shuffled order(grid, seed);
  for (unsigned i = 0; i < grid && !m.failure; i++) {
    m.block.x = order.turns[i];
    run_block(seed + i);
  }
  return m.failure;
}

template <size_t... I>
struct Numbers {};
template <size_t N, size_t... I>
struct NumbersTo : NumbersTo<N - 1, N - 1, I...> {};
template <size_t... I>
struct NumbersTo<0, I...> {
  typedef Numbers<I...> All;
};

template <class... A>
struct Call {
  void (*kernel)(A...);
  void** arguments;

  template <size_t... I>
  void make(Numbers<I...>) const {
    kernel(*static_cast<A*>(arguments[I])...);
  }
  static void body(const void* call) { ((const Call*)call)->make(typename NumbersTo<sizeof...(A)>::All()); }
};

template <class... A>
const char* launch(void (*kernel)(A...), unsigned grid, unsigned block, unsigned seed, void** arguments) {
  Call<A...> call = {kernel, arguments};
  return run(Call<A...>::body, &call, grid, block, seed);
}

template <class... A>
int sizes(void (*)(A...), int* sizes) {
  int all[] = {int(sizeof(A))...};
  memcpy(sizes, all, sizeof all);
  return sizeof...(A);
}

template <class T>
unsigned long long word_of(T value) {
  unsigned long long word = 0;
  memcpy(&word, &value, sizeof(T));
  return word;
}

template <class T>
T value_of(unsigned long long word) {
  T value;
  memcpy(&value, &word, sizeof(T));
  return value;
}

}  // namespace simt

#define ENTRY(name)                                                                                      \
  extern "C" const char* launch_##name(unsigned grid, unsigned block, unsigned seed, void** arguments) { \
    return simt::launch(&name, grid, block, seed, arguments);                                            \
  }                                                                                                      \
  extern "C" int sizes_##name(int* sizes) { return simt::sizes(&name, sizes); }

#define threadIdx (simt::Dim{simt::machine().now->number})
#define blockIdx (simt::machine().block)
#define blockDim (simt::machine().block_dim)
#define gridDim (simt::machine().grid)
#define __syncthreads() simt::barrier()
#define __syncwarp() simt::meet(__LINE__, 0)

inline unsigned __ballot_sync(unsigned, bool vote) {
  const unsigned long long* votes = simt::meet(-1, vote);
  unsigned bits = 0;
  for (int lane = 0; lane < simt::lanes; lane++) bits |= unsigned(votes[lane]) << lane;
  return bits;
}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return simt::value_of<T>(simt::meet(-2, simt::word_of(value))[lane & 31]);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int offset) {
  int lane = simt::machine().now->number % simt::lanes;
  return simt::value_of<T>(simt::meet(-3, simt::word_of(value))[lane ^ offset]);
}

template <class T>
T atomicAdd(T* to, T by) { T old = *to; *to = old + by; return old; }
template <class T>
T atomicSub(T* to, T by) { T old = *to; *to = old - by; return old; }
template <class T>
T atomicMin(T* to, T by) { T old = *to; *to = by < old ? by : old; return old; }
template <class T>
T atomicMax(T* to, T by) { T old = *to; *to = old < by ? by : old; return old; }
template <class T>
T atomicExch(T* to, T by) { T old = *to; *to = by; return old; }
template <class T>
T atomicCAS(T* to, T wanted, T by) { T old = *to; if (old == wanted) *to = by; return old; }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __float_as_uint(float number) { return simt::value_of<unsigned>(simt::word_of(number)); }
inline float __uint_as_float(unsigned bits) { return simt::value_of<float>(simt::word_of(bits)); }
inline unsigned __vcmpeq4(unsigned a, unsigned b) {
  unsigned equal = 0;
  for (int i = 0; i < 32; i += 8)
    if ((a >> i & 0xff) == (b >> i & 0xff)) equal |= 0xffu << i;
  return equal;
}
