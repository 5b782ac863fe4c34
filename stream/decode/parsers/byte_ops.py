"""Reads bytes of a message one by one or as 64-bit words, within bounds; Numba's options for all parsers."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from springtide.kernels.njit import njit

Function = TypeVar("Function", bound=Callable[..., Any])


# without `_nrt` nothing may be allocated, and no references are counted: counting those of every array at every call,
# atomically, took nine tenths of the time
OPTIONS = {"nogil": True, "_nrt": False, "error_model": "numpy"}


def compiled(function: Function) -> Function:
    """Compile a function that only compiled functions call; it must not allocate."""
    wrapped: Function = njit(**OPTIONS)(function)
    return wrapped


def inlined(function: Function) -> Function:
    """Compile a hot function and inline it: an array is seven arguments of a call, a tuple of arrays seventy."""
    wrapped: Function = njit(forceinline=True, **OPTIONS)(function)
    return wrapped


EIGHT = np.uint64(8)


@intrinsic
def load_word(typingctx: Any, array: Any, index: Any) -> Any:
    """The 8 bytes of a contiguous uint8 array from a uint64 index on, little-endian; the index is not checked."""
    signature = types.uint64(array, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(struct.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return signature, generate


@inlined
def byte_at(buffer: Any, at: Any, end: Any) -> Any:
    """The byte at a position, or 0 at the end: valid JSON contains no 0 byte."""
    return buffer[np.uint64(at)] if at < end else np.uint8(0)


@inlined
def partial_word(buffer: Any, at: Any, num_bytes: Any) -> Any:
    """Up to 8 bytes within the buffer as a little-endian word, padded with zeros."""
    if num_bytes == 0:
        return np.uint64(0)
    if at + 8 <= len(buffer):
        return load_word(buffer, np.uint64(at)) & (
            np.uint64(0xFFFF_FFFF_FFFF_FFFF) >> (EIGHT * np.uint64(8 - num_bytes))
        )
    word = np.uint64(0)
    for i in range(num_bytes):
        word |= np.uint64(buffer[np.uint64(at + i)]) << np.uint64(8 * i)
    return word


@inlined
def skip_space(buffer: Any, at: Any, end: Any) -> Any:
    """The next position that does not hold JSON white space."""
    while at < end:
        byte = buffer[np.uint64(at)]
        if byte > 32 or not (byte == 32 or byte == 10 or byte == 13 or byte == 9):
            break
        at += 1
    return at


@intrinsic
def double_of(typingctx: Any, word: Any) -> Any:
    """The float64 whose bits are those of a uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate


@intrinsic
def float_of(typingctx: Any, word: Any) -> Any:
    """The float32 whose bits are the lower ones of a uint64, as a float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = builder.bitcast(builder.trunc(arguments[0], ir.IntType(32)), ir.FloatType())
        return builder.fpext(number, ir.DoubleType())

    return types.float64(types.uint64), generate


@inlined
def read_varint(buffer: Any, at: Any, end: Any) -> Any:
    """(position after it, uint64) of the varint at `at`; a position of -1 if it is longer than ten bytes."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end:
        byte = np.uint64(buffer[np.uint64(at)])
        at += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return (np.int64(-1), value) if shift == np.uint64(63) and byte > np.uint64(1) else (np.int64(at), value)
        shift += np.uint64(7)
        if shift > np.uint64(63):
            break
    return np.int64(-1), value


@inlined
def zigzag(value: Any) -> Any:
    """The int64 that a varint of zigzag stands for."""
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
