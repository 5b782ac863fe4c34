// Passes over slots: which are occupied, whose rows are dead, which have the lowest scores. Lists are ascending.
#include "bucket.cuh"
#include "compact.cuh"

#define RECORD 4

INLINE bool is_dead(const i64* meta, i64 slot, u16 feature, const i64* cutoffs_F, i64 num_features) {
  return feature < num_features && meta[slot * RECORD + 1] < cutoffs_F[feature];
}

INLINE bool has_expired(const Index& index, const i64* meta, i64 slot, const i64* cutoffs_F, i64 num_features) {
  u16 feature;
  i64 id;
  if (!is_taken(index, slot)) return false;
  key_at(index, slot, feature, id);
  return is_dead(meta, slot, feature, cutoffs_F, num_features);
}

extern "C" __global__ void count_occupied(INDEX_PARAMETERS, i64 start, i64 num, i64 chunk, i64* counts) {
  const Index index = INDEX_OF_PARAMETERS;
  count_kept([&](i64 i) { return is_taken(index, start + i); }, num, chunk, counts);
}

extern "C" __global__ void list_occupied(INDEX_PARAMETERS, i64 start, i64 num, i64 chunk, const i64* counts,
                                         i64* slots_N, i64* num_listed) {
  const Index index = INDEX_OF_PARAMETERS;
  write_kept([&](i64 i) { return is_taken(index, start + i); }, [&](i64 i, i64 rank) { slots_N[rank] = start + i; },
             num, chunk, counts, num_listed);
}

extern "C" __global__ void count_expired(INDEX_PARAMETERS, const i64* meta, const i64* cutoffs_F, i64 num_features,
                                         i64 start, i64 num, i64 chunk, i64* counts) {
  const Index index = INDEX_OF_PARAMETERS;
  count_kept([&](i64 i) { return has_expired(index, meta, start + i, cutoffs_F, num_features); }, num, chunk, counts);
}

extern "C" __global__ void list_expired(INDEX_PARAMETERS, const i64* meta, const i64* cutoffs_F, i64 num_features,
                                        i64 start, i64 num, i64 chunk, const i64* counts, i64* slots_N,
                                        i64* num_listed) {
  const Index index = INDEX_OF_PARAMETERS;
  write_kept([&](i64 i) { return has_expired(index, meta, start + i, cutoffs_F, num_features); },
             [&](i64 i, i64 rank) { slots_N[rank] = start + i; }, num, chunk, counts, num_listed);
}

extern "C" __global__ void count_dead(const i64* meta, const i64* slots_N, const u16* features_N,
                                      const i64* cutoffs_F, i64 num_features, i64 num, i64 chunk, i64* counts) {
  auto keep = [&](i64 n) {
    return slots_N[n] >= 0 && is_dead(meta, slots_N[n], features_N[n], cutoffs_F, num_features);
  };
  count_kept(keep, num, chunk, counts);
}

extern "C" __global__ void list_dead(const i64* meta, const i64* slots_N, const u16* features_N, const i64* cutoffs_F,
                                     i64 num_features, i64 num, i64 chunk, const i64* counts, i64* positions_M,
                                     i64* num_listed) {
  auto keep = [&](i64 n) {
    return slots_N[n] >= 0 && is_dead(meta, slots_N[n], features_N[n], cutoffs_F, num_features);
  };
  write_kept(keep, [&](i64 n, i64 rank) { positions_M[rank] = n; }, num, chunk, counts, num_listed);
}

extern "C" __global__ void count_overflow(INDEX_PARAMETERS, i64 protect_from, i64 num, i64 chunk, i64* counts) {
  const Index index = INDEX_OF_PARAMETERS;
  count_kept([&](i64 row) { return index.taken_O[row] && tick_of(index.scores_O[row]) < protect_from; }, num, chunk,
             counts);
}

extern "C" __global__ void list_overflow(INDEX_PARAMETERS, i64 protect_from, i64 num, i64 chunk, const i64* counts,
                                         i64* slots_N, i64* num_listed) {
  const Index index = INDEX_OF_PARAMETERS;
  write_kept([&](i64 row) { return index.taken_O[row] && tick_of(index.scores_O[row]) < protect_from; },
             [&](i64 row, i64 rank) { slots_N[rank] = index.num_slots() + row; }, num, chunk, counts, num_listed);
}

// The lowest are chosen digit by digit of (score word, key hash, slot), 21 digits of 8 bits: a pass counts the digits
// of those that agree with the threshold so far, another takes the digit where so many are reached.
#define NUM_DIGITS 21
#define SCORE_DIGITS 8
#define KEY_DIGITS 16

INLINE u64 ordered(i64 score) { return (u64)score ^ (1ull << 63); }

INLINE i32 word_of_digit(i32 digit) { return digit < SCORE_DIGITS ? 0 : digit < KEY_DIGITS ? 1 : 2; }
INLINE i32 shift_of_digit(i32 digit) { return digit < KEY_DIGITS ? 56 - digit % 8 * 8 : 32 - (digit - KEY_DIGITS) * 8; }

INLINE bool is_candidate(const Index& index, i64 slot, i64 feature, i64 protect_from) {
  return index.digests[slot] != EMPTY && tick_of(index.scores[slot]) < protect_from &&
         (feature < 0 || index.features[slot] == feature);
}

INLINE u64 word_at(const Index& index, i64 slot, i32 word) {
  return word == 0 ? ordered(index.scores[slot]) : word == 1 ? key_hash_at(index, slot) : (u64)slot;
}

// Agrees in all digits before this one; its digit.
INLINE bool agrees(const Index& index, i64 slot, const u64* words, i32 digit, u32& own) {
  i32 word = word_of_digit(digit), shift = shift_of_digit(digit);
  for (i32 w = 0; w < word; w++)
    if (word_at(index, slot, w) != words[w]) return false;
  u64 mine = word_at(index, slot, word);
  own = (u32)(mine >> shift) & 0xff;
  return shift == 56 || mine >> (shift + 8) == words[word] >> (shift + 8);
}

extern "C" __global__ void count_digits(INDEX_PARAMETERS, i64 feature, i64 protect_from, i32 digit, const u64* words,
                                        u32* bins_256) {
  __shared__ u32 bins[256];
  const Index index = INDEX_OF_PARAMETERS;
  for (i32 b = threadIdx.x; b < 256; b += blockDim.x) bins[b] = 0;
  __syncthreads();
  u32 own = 0;
  for (i64 slot = thread_number(); slot < index.num_slots(); slot += num_threads())
    if (is_candidate(index, slot, feature, protect_from) && agrees(index, slot, words, digit, own))
      atomicAdd(bins + own, 1u);
  __syncthreads();
  for (i32 b = threadIdx.x; b < 256; b += blockDim.x)
    if (bins[b]) atomicAdd(bins_256 + b, bins[b]);
}

// One thread: the digit at which the wanted number is reached, or the highest; bins are empty again.
extern "C" __global__ void choose_digit(i32 digit, u64* words, i64* wanted, u32* bins_256) {
  if (thread_number() > 0) return;
  i64 left = *wanted;
  u32 chosen = 0;
  while (chosen < 255 && left > bins_256[chosen]) left -= bins_256[chosen++];
  for (u32 b = 0; b < 256; b++) bins_256[b] = 0;
  *wanted = left;
  words[word_of_digit(digit)] |= (u64)chosen << shift_of_digit(digit);
}

INLINE bool is_low(const Index& index, i64 slot, i64 feature, i64 protect_from, const u64* words) {
  if (!is_candidate(index, slot, feature, protect_from)) return false;
  for (i32 w = 0; w < 3; w++) {
    u64 mine = word_at(index, slot, w);
    if (mine != words[w]) return mine < words[w];
  }
  return true;
}

extern "C" __global__ void count_low(INDEX_PARAMETERS, i64 feature, i64 protect_from, const u64* words, i64 num,
                                     i64 chunk, i64* counts) {
  const Index index = INDEX_OF_PARAMETERS;
  count_kept([&](i64 slot) { return is_low(index, slot, feature, protect_from, words); }, num, chunk, counts);
}

extern "C" __global__ void list_low(INDEX_PARAMETERS, i64 feature, i64 protect_from, const u64* words, i64 num,
                                    i64 chunk, const i64* counts, i64* slots_N, i64* num_listed) {
  const Index index = INDEX_OF_PARAMETERS;
  write_kept([&](i64 slot) { return is_low(index, slot, feature, protect_from, words); },
             [&](i64 slot, i64 rank) { slots_N[rank] = slot; }, num, chunk, counts, num_listed);
}

// Score words (word 0) or key hashes (word 1) of slots taken in some order, as int64 that sort like them; no slot last.
extern "C" __global__ void sort_words(INDEX_PARAMETERS, const i64* slots_N, i64 num, i32 word, i64* words_N) {
  const Index index = INDEX_OF_PARAMETERS;
  for (i64 n = thread_number(); n < num; n += num_threads())
    words_N[n] = slots_N[n] < 0 ? 0x7fffffffffffffffll : (i64)(word_at(index, slots_N[n], word) ^ (1ull << 63));
}

extern "C" __global__ void take(const i64* source, const i64* order_N, i64 num, i64* taken_N) {
  for (i64 n = thread_number(); n < num; n += num_threads()) taken_N[n] = source[order_N[n]];
}
