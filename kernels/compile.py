"""Call every op of the CPU kernels once on a tiny table, as Numba compiles for the types that it is called with."""

from collections.abc import Iterable

import numpy as np

from springtide.kernels.backend import backend
from springtide.kernels.cpu import bloom_filter
from springtide.kernels.cpu.rows import row_codec
from springtide.kernels.cpu.table_file import blocks, find
from springtide.kernels.cpu.table_file.blocks import SHORTEST, block_checksum
from springtide.kernels.ops import Ops
from springtide.kernels.types import NEEDS_SPILL, OptimizerStep, RowColumns, RowLayout, Store


def compile_ops(dims: Iterable[int]) -> None:
    """Compile every op once for the types it is called with."""
    ops = backend("cpu")
    for dim in dims:
        compile_table_ops(ops, ops.allocate(32, 16, RowLayout(dim, 1)))
    compile_sketch_ops(ops)
    compile_table_files()
    compile_row_codec()
    ops.hash_texts(np.frombuffer(b"springtide", np.uint8), np.array([0, 10]))
    ops.hash_texts(np.zeros(1, np.uint8), np.array([0, 1]))


def compile_table_ops(ops: Ops, store: Store) -> None:
    """Call every op of a table with a batch that is larger than the table."""
    features_K, ids_K = np.zeros(64, np.uint16), np.arange(64) % 40
    unique = ops.unique(features_K, ids_K, ids_K)
    placed = ops.find_or_insert(store, unique.features_U, unique.ids_U, unique.key_hash_U, 1, 1)
    features_N, ids_N = ops.keys_of(store, placed.slots_U)
    ops.create(store, placed.slots_U, features_N, ids_N, 0, 0.01)
    ops.initial_values(features_N, ids_N, store.dim, 0, 0.01)
    grads_KD = ops.gather(store, ops.find(store, features_N, ids_N, ops.hash_keys(features_N, ids_N)), ids_K)
    order_K, offsets_U1 = ops.group(unique.inverse_K, unique.occurrences_U)
    num_unique, step = len(placed.slots_U), OptimizerStep("rowwise-adagrad", 0.1)
    fresh_N, _ = ops.update(
        store, placed.slots_U, order_K, offsets_U1, grads_KD, unique.last_seen_U, step, False, 0, num_unique
    )
    ops.clear_dirty(store, fresh_N)
    columns: RowColumns = ops.read(store, placed.slots_U)
    ops.scatter(store, placed.slots_U, columns)
    ops.write_learned(store, placed.slots_U, *columns[:2], 0)
    ops.touch(store, placed.slots_U, unique.occurrences_U, unique.last_seen_U, False)
    ops.set_flags(store, placed.slots_U, NEEDS_SPILL)
    ops.set_priorities(store, placed.slots_U, unique.occurrences_U)
    num_rows, cutoffs_F = store.num_slots + store.num_overflow, np.ones(1, np.int64)
    ops.find_expired(store, placed.slots_U, features_N, cutoffs_F)
    ops.expired_slots(store, 0, num_rows, cutoffs_F)
    ops.occupied_slots(store, 0, num_rows)
    ops.lowest_scores(store, -1, 4, 2)
    ops.erase(store, ops.overflow_slots(store, 2))
    ops.resize(store, 64)


def compile_table_files() -> None:
    """Look for a key where there are no tables, and in a block, an index and a filter of zeros."""
    tables_TC, none_T, runs_R1 = (
        np.zeros((0, find.NUM_COLUMNS), np.int64),
        np.zeros(0, np.uint64),
        np.zeros(1, np.int64),
    )
    key_hash_U, features_U, numbers_U = np.zeros(1, np.uint64), np.zeros(1, np.uint16), np.zeros(1, np.int64)
    tables = tables_TC, none_T, none_T, runs_R1, key_hash_U, features_U
    find.locate_all(*tables, numbers_U.copy(), numbers_U, numbers_U.copy())
    find.find_all(*tables, numbers_U.copy(), False, np.zeros(1, np.uint8), numbers_U, numbers_U.copy())
    values_UD = np.zeros((1, 1), np.float32)
    find.copy_rows(numbers_U[:0], numbers_U[:0], key_hash_U, values_UD, values_UD.copy(), numbers_U, numbers_U.copy())
    zeros = np.zeros(256, np.uint8)
    blocks.parse_index(zeros.ctypes.data, len(zeros), key_hash_U, np.zeros(2, np.uint32))
    block_checksum(zeros.ctypes.data, SHORTEST, 0, 0)


def compile_row_codec() -> None:
    """Encode and decode no rows."""
    rows_UD, order_N, words_NW = np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros((0, 5), np.float32)
    bits_UD, halves_NH, bytes_NB = rows_UD.view(np.uint32), words_NW.view(np.uint16), words_NW.view(np.int8)
    row_codec.pack_float32(rows_UD, order_N, 4, rows_UD, words_NW)
    row_codec.pack_bfloat16(bits_UD, order_N, 4, rows_UD, words_NW, halves_NH)
    row_codec.pack_int8(rows_UD, bits_UD, order_N, 4, np.uint64(0), True, rows_UD, words_NW, bytes_NB)
    row_codec.unpack_float32(words_NW, order_N, 4, rows_UD, rows_UD)
    row_codec.unpack_bfloat16(words_NW, halves_NH, order_N, 4, bits_UD, rows_UD)
    row_codec.unpack_int8(words_NW, bytes_NB, order_N, 4, rows_UD, rows_UD)


def compile_sketch_ops(ops: Ops) -> None:
    """Call every op of the sketch, the ghosts and the filter of spilled keys."""
    sketch, ghosts = ops.new_sketch(64), ops.new_ghosts(1)
    key_hash_U = np.zeros(1, np.uint64)
    words = np.zeros(bloom_filter.BLOCK_WORDS, np.uint64)
    bloom_filter.add(words, key_hash_U)
    bloom_filter.contains(words, key_hash_U)
    ops.sketch_add(sketch, key_hash_U, np.ones(1, np.int64), 1)
    ops.sketch_estimate(sketch, key_hash_U, 1)
    ops.ghosts_add(ghosts, key_hash_U, 1)
    ops.ghosts_count(ghosts, key_hash_U, 1)
