"""Stochastic rounding to bfloat16: up or down, in proportion to how near each is, by a hash instead of a generator.

The bits depend on seed, mixed key, count and element alone, so on no order and no number of threads. Rounding to
nearest would lose every step smaller than half a unit in the last of 8 bits, for good.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from springtide.kernels.cpu.hashing import GOLDEN, mix64
from springtide.kernels.cpu.intrinsics.simd import INT32, constant_lanes, lane_numbers, splat, store_masked

ELEMENT, MIX_1, MIX_2 = 0x9E37_79B9, 0x7FEB_352D, 0x846C_A68B  # the last two: lowbias32 (Wellons 2018)


@njit(nogil=True, cache=True)
def bits_of(mixed: Any, mixed_seed: Any, count: Any) -> Any:
    """The 64 bits of a row and step, from which each element's are made."""
    return mix64((mixed ^ mixed_seed) + GOLDEN * count)


@intrinsic
def store_rounded(typingctx: Any, array: Any, index: Any, rest: Any, lanes: Any, element: Any, bits: Any) -> Any:
    """Lanes to array[index] and on, the first of them being this element of the row; lanes.store rounds to nearest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, rest, value, element, bits = arguments
        num = lanes.num
        low, high = builder.trunc(bits, INT32), builder.trunc(builder.lshr(bits, bits.type(32)), INT32)
        elements = builder.add(lane_numbers(num), splat(builder, builder.trunc(element, INT32), num))
        x = builder.add(builder.mul(elements, constant_lanes(num, ELEMENT)), splat(builder, low, num))
        x = builder.xor(x, splat(builder, high, num))
        x = builder.mul(builder.xor(x, builder.lshr(x, constant_lanes(num, 16))), constant_lanes(num, MIX_1))
        x = builder.mul(builder.xor(x, builder.lshr(x, constant_lanes(num, 15))), constant_lanes(num, MIX_2))
        # a NaN here ends in zeros, being computed or read from bfloat16, so that the sum does not carry over
        up = builder.add(builder.bitcast(value, ir.VectorType(INT32, num)), builder.lshr(x, constant_lanes(num, 16)))
        store_masked(context, builder, signature.args[0], array, index, rest, up)
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint64, lanes, types.uint64, types.uint64), generate
