// The dot products of a sample's vectors, each pair of them once (DLRM's interaction), and what they send back.
// Compiled for NUMBER: 0 float32, 1 bfloat16 (sums are float32), 2 float64. A thread has a tile of four by four sums, a
// block the tiles of `group` samples; a tile's operands are two quads of shared memory a step. Sums run over the
// dimension, or the vectors, in their order: they do not depend on the batch.
#include "narrow.cuh"

#if NUMBER == 1
typedef u16 Value;
typedef float Sum;
#elif NUMBER == 2
typedef double Value;
typedef double Sum;
#else
typedef float Value;
typedef float Sum;
#endif

#define SIDE 4                                        // of a tile
#define MOST_ROWS 512                                 // of a block's samples, each sample's a multiple of SIDE
#define CHUNK (64 / (i32)sizeof(Sum))                 // numbers of a vector that are in shared memory at once
#define STRIDE (MOST_ROWS / SIDE + 1)                 // quads from a number to the next
#define MATRIX_QUADS (32768 / (i32)sizeof(Quad))      // of the gradients of a block's pairs
#define ROW_QUADS (16384 / (i32)sizeof(Quad))         // of its vectors

struct alignas(16) Quad {
  Sum at[SIDE];
};

struct Tile {
  Sum at[SIDE][SIDE];
};

INLINE void clear(Tile& tile) {
#pragma unroll
  for (i32 a = 0; a < SIDE; a++)
#pragma unroll
    for (i32 b = 0; b < SIDE; b++) tile.at[a][b] = 0;
}

INLINE void add_product(Tile& tile, const Quad& left, const Quad& right) {
#pragma unroll
  for (i32 a = 0; a < SIDE; a++)
#pragma unroll
    for (i32 b = 0; b < SIDE; b++) tile.at[a][b] = tile.at[a][b] + left.at[a] * right.at[b];
}

INLINE i32 quads_of(i32 num) { return (num + SIDE - 1) / SIDE; }

// Where a vector's pairs with later ones begin, less the number of its first partner: pair (i, j) is at this plus j.
INLINE i32 pairs_before(i32 i, i32 num_vectors) { return i * num_vectors - i * (i + 1) / 2 - i - 1; }

// products[n][p] of vectors[n][i] and vectors[n][j], the pairs i < j in the order of i, then j.
extern "C" __global__ void __launch_bounds__(256) pair_products(const Value* __restrict__ vectors, i64 num,
                                                                i32 num_vectors, i32 dim, i32 group, Value* products) {
  __shared__ Quad shared[CHUNK * STRIDE];
  Sum* numbers = (Sum*)shared;
  i32 quads = quads_of(num_vectors), padding = quads * SIDE - num_vectors, tiles = quads * (quads + 1) / 2;
  i32 num_pairs = num_vectors * (num_vectors - 1) / 2, thread = (i32)threadIdx.x;
  i32 sample = thread / tiles, left = 0, right = thread % tiles;
  for (; right >= quads - left; left++) right -= quads - left;
  right += left;
  i32 number = thread % CHUNK, first_row = thread / CHUNK, rows_a_turn = (i32)blockDim.x / CHUNK;

  for (i64 first = (i64)blockIdx.x * group; first < num; first += (i64)gridDim.x * group) {
    i32 here = (i32)min_of(group, num - first), num_rows = here * num_vectors;
    const Value* begin = vectors + first * num_vectors * dim;
    Tile tile;
    clear(tile);
    for (i32 start = 0; start < dim; start += CHUNK) {
      i32 width = (i32)min_of(CHUNK, dim - start), of_sample = first_row, place = number * STRIDE * SIDE + first_row;
      __syncthreads();  // what was here has been read
      for (i32 row = first_row; row < num_rows; row += rows_a_turn, of_sample += rows_a_turn, place += rows_a_turn) {
        for (; of_sample >= num_vectors; of_sample -= num_vectors) place += padding;
        if (number < width) numbers[place] = widened(begin[(i64)row * dim + start + number]);
      }
      __syncthreads();
      if (sample >= here) continue;
      // padding between samples only enters sums that are not stored
      const Quad* quad = shared + sample * quads;
#pragma unroll 4
      for (i32 k = 0; k < width; k++) add_product(tile, quad[k * STRIDE + left], quad[k * STRIDE + right]);
    }
    __syncthreads();
    if (sample < here) {
#pragma unroll
      for (i32 a = 0; a < SIDE; a++) {
        i32 i = left * SIDE + a;
        Sum* out = numbers + sample * num_pairs + pairs_before(i, num_vectors);
#pragma unroll
        for (i32 b = 0; b < SIDE; b++) {
          i32 j = right * SIDE + b;
          if (i < j && j < num_vectors) out[j] = tile.at[a][b];
        }
      }
    }
    __syncthreads();
    for (i32 p = thread; p < here * num_pairs; p += (i32)blockDim.x) narrow(numbers[p], products[first * num_pairs + p]);
  }
}

// grads[n][i] = the sum over j, i apart, of vectors[n][j] times the gradient of pair (i, j). `width`: numbers of a
// vector in shared memory at once, a power of two and at least SIDE.
extern "C" __global__ void __launch_bounds__(256) pair_gradients(const Value* __restrict__ vectors,
                                                                 const Value* __restrict__ of_pairs, i64 num,
                                                                 i32 num_vectors, i32 dim, i32 group, i32 width,
                                                                 Value* grads) {
  __shared__ Quad matrix[MATRIX_QUADS];  // a sample's is symmetric, a row for each vector
  __shared__ Quad rows[ROW_QUADS];
  i32 quads = quads_of(num_vectors), columns = width / SIDE, tiles = quads * columns;
  i32 num_pairs = num_vectors * (num_vectors - 1) / 2, thread = (i32)threadIdx.x, threads = (i32)blockDim.x;
  i32 sample = thread / tiles, block = thread % tiles / columns, column = thread % columns;

  for (i64 first = (i64)blockIdx.x * group; first < num; first += (i64)gridDim.x * group) {
    i32 here = (i32)min_of(group, num - first), num_rows = here * num_vectors;
    __syncthreads();  // what was here has been read
    for (i32 row = thread / LANES; row < num_rows; row += threads / LANES) {
      i32 of = row / num_vectors, i = row % num_vectors;
      Sum* into = (Sum*)(matrix + of * num_vectors * quads);
      const Value* from = of_pairs + (first + of) * num_pairs + pairs_before(i, num_vectors);
      for (i32 j = i + lane_number(); j < num_vectors; j += LANES) {
        Sum gradient = j == i ? 0 : widened(from[j]);
        into[i * quads * SIDE + j] = gradient;
        into[j * quads * SIDE + i] = gradient;
      }
    }
    for (i32 start = 0; start < dim; start += width) {
      i32 number = thread % width;
      const Value* begin = vectors + first * num_vectors * dim + start + number;
      if (start) __syncthreads();
      if (start + number < dim)
        for (i32 row = thread / width; row < num_rows; row += threads / width)
          ((Sum*)rows)[row * width + number] = widened(begin[(i64)row * dim]);
      __syncthreads();
      if (sample >= here) continue;
      Tile tile;
      clear(tile);
      const Quad *left = matrix + sample * num_vectors * quads + block;
      const Quad *right = rows + sample * num_vectors * columns + column;
#pragma unroll 2
      for (i32 j = 0; j < num_vectors; j++) add_product(tile, left[j * quads], right[j * columns]);
      Value* out = grads + (first + sample) * num_vectors * dim + start;
#pragma unroll
      for (i32 a = 0; a < SIDE; a++)
#pragma unroll
        for (i32 b = 0; b < SIDE; b++) {
          i32 i = block * SIDE + a, d = column * SIDE + b;
          if (i < num_vectors && start + d < dim) narrow(tile.at[a][b], out[(i64)i * dim + d]);
        }
    }
  }
}
