"""Up to 64 float32 numbers of a row as one LLVM vector: loads, stores and arithmetic, for Numba kernels.

A compiler left to itself must first prove that rows, gradients and states do not overlap; here nothing is left to
prove, the sum of a row's gradients stays in registers, and every operation is the rounded IEEE one, in an order that
is written down. Arrays are float32, or uint16 that hold bfloat16. Lanes from `rest` on are neither read (they are 0)
nor written.
"""

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

WIDEST = 64
LINE_BYTES = 64
FLOAT, INT16, INT32 = ir.FloatType(), ir.IntType(16), ir.IntType(32)
ELEMENTS = {types.float32: FLOAT, types.uint16: INT16, types.int64: ir.IntType(64)}


def num_lanes(dim: int) -> int:
    """How many numbers of a row of this dimension are handled at once."""
    # 1 has a width of its own: LLVM 20 stores two bfloat16 where a constant says that one lane of eight counts
    return next((num for num in (1, 8, 16, 32) if dim <= num), WIDEST)


class Lanes(types.Type):  # type: ignore[misc]
    """So many float32 numbers."""

    def __init__(self, num: int) -> None:
        self.num = num
        super().__init__(name=f"Lanes({num})")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """An LLVM vector."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(FLOAT, fe_type.num))


def splat(builder: Any, value: Any, num: int) -> Any:
    """A vector with the scalar in every lane."""
    vector = ir.VectorType(value.type, num)
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, INT32(0))
    return builder.shuffle_vector(first, undefined, constant_lanes(num, 0))


def constant_lanes(num: int, value: int) -> Any:
    return ir.Constant(ir.VectorType(INT32, num), [value] * num)


def lane_numbers(num: int) -> Any:
    """0, 1, 2, ..."""
    return ir.Constant(ir.VectorType(INT32, num), list(range(num)))


def call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def pointer_and_mask(context: Any, builder: Any, array_type: Any, array: Any, index: Any, rest: Any, num: int) -> Any:
    """Pointer to a vector, its kind, the bytes it is aligned to, and which lanes count."""
    struct = context.make_array(array_type)(context, builder, array)
    element = ELEMENTS[array_type.dtype]
    vector = ir.VectorType(element, num)
    pointer = builder.bitcast(builder.gep(struct.data, [index]), vector.as_pointer())
    mask = builder.icmp_unsigned("<", lane_numbers(num), splat(builder, builder.trunc(rest, INT32), num))
    return pointer, vector, INT32(array_type.dtype.bitwidth // 8), mask


@intrinsic(prefer_literal=True)
def zeros(typingctx: Any, num: Any) -> Any:
    """Lanes of 0, so many as a constant says: 1, 8, 16, 32 or 64."""
    lanes = Lanes(num.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(ir.VectorType(FLOAT, lanes.num), [0.0] * lanes.num)

    return lanes(num), generate


@intrinsic
def load(typingctx: Any, like: Any, array: Any, index: Any, rest: Any) -> Any:
    """As many numbers as `like` has, from array[index] on; uint64 index and rest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (_, array, index, rest), num = arguments, like.num
        pointer, vector, align, mask = pointer_and_mask(context, builder, signature.args[1], array, index, rest, num)
        suffix = "f32" if vector.element == FLOAT else "i16"
        zero = ir.Constant(vector, [0] * num if suffix == "i16" else [0.0] * num)
        loaded = call(builder, f"llvm.masked.load.v{num}{suffix}.p0", vector, [pointer, align, mask, zero])
        if suffix == "f32":
            return loaded
        wide = builder.shl(builder.zext(loaded, ir.VectorType(INT32, num)), constant_lanes(num, 16))
        return builder.bitcast(wide, ir.VectorType(FLOAT, num))

    return like(like, array, types.uint64, types.uint64), generate


@intrinsic
def prefetch_lanes(typingctx: Any, like: Any, array: Any, index: Any) -> Any:
    """Asks for the cache lines that a load of as many numbers as `like` has would take; uint64 index, not checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(array)(context, builder, arguments[1])
        first = builder.bitcast(builder.gep(struct.data, [arguments[2]]), ir.IntType(8).as_pointer())
        for at in range(0, like.num * array.dtype.bitwidth // 8, LINE_BYTES):
            line = builder.gep(first, [INT32(at)])
            call(builder, "llvm.prefetch.p0", ir.VoidType(), [line, INT32(0), INT32(3), INT32(1)])
        return context.get_dummy_value()

    return types.void(like, array, types.uint64), generate


def store_masked(context: Any, builder: Any, array_type: Any, array: Any, index: Any, rest: Any, lanes: Any) -> None:
    """Stores floats, or the upper halves of 32-bit words."""
    num = lanes.type.count
    pointer, vector, align, mask = pointer_and_mask(context, builder, array_type, array, index, rest, num)
    if vector.element == INT16:
        lanes = builder.trunc(builder.lshr(lanes, constant_lanes(num, 16)), vector)
    suffix = "f32" if vector.element == FLOAT else "i16"
    call(builder, f"llvm.masked.store.v{num}{suffix}.p0", ir.VoidType(), [lanes, pointer, align, mask])


@intrinsic
def store(typingctx: Any, array: Any, index: Any, rest: Any, lanes: Any) -> Any:
    """The numbers to array[index] and on; to bfloat16 rounded to nearest even, NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, num = signature.args[0], lanes.num
        array, index, rest, value = arguments
        if array_type.dtype != types.float32:
            is_nan = builder.fcmp_unordered("uno", value, value)
            bits = builder.bitcast(value, ir.VectorType(INT32, num))
            odd = builder.and_(builder.lshr(bits, constant_lanes(num, 16)), constant_lanes(num, 1))
            near = builder.add(builder.add(bits, constant_lanes(num, 0x7FFF)), odd)
            value = builder.select(is_nan, builder.or_(bits, constant_lanes(num, 0x40_0000)), near)
        store_masked(context, builder, array_type, array, index, rest, value)
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint64, lanes), generate


def register_operator(operation: Any, method: str) -> None:
    """An operator of two Lanes, or of Lanes and a float32 on either side."""

    @intrinsic
    def combine(typingctx: Any, a: Any, b: Any) -> Any:
        lanes = a if isinstance(a, Lanes) else b

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            both = [
                value if isinstance(kind, Lanes) else splat(builder, value, lanes.num)
                for kind, value in zip(signature.args, arguments, strict=True)
            ]
            return getattr(builder, method)(*both)

        return lanes(*[kind if isinstance(kind, Lanes) else types.float32 for kind in (a, b)]), generate

    @overload(operation)
    def combined(a: Any, b: Any) -> Any:
        def result(a: Any, b: Any) -> Any:
            return combine(a, b)

        return result if isinstance(a, Lanes) or isinstance(b, Lanes) else None


for operation, method in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    register_operator(operation, method)


@intrinsic
def sqrt(typingctx: Any, lanes: Any) -> Any:
    """Square roots."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, f"llvm.sqrt.v{lanes.num}f32", arguments[0].type, arguments)

    return lanes(lanes), generate


@intrinsic
def absolute(typingctx: Any, lanes: Any) -> Any:
    """Absolute values."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, f"llvm.fabs.v{lanes.num}f32", arguments[0].type, arguments)

    return lanes(lanes), generate


@intrinsic
def zero_where_at_most(typingctx: Any, tested: Any, limit: Any, lanes: Any) -> Any:
    """0 in the lanes where tested <= limit, a float32; elsewhere what they were."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at_most = builder.fcmp_ordered("<=", arguments[0], splat(builder, arguments[1], lanes.num))
        return builder.select(at_most, ir.Constant(arguments[2].type, [0.0] * lanes.num), arguments[2])

    return lanes(tested, types.float32, lanes), generate


@intrinsic
def copysign_nonzero(typingctx: Any, size: Any, lanes: Any) -> Any:
    """A float32 with each lane's sign; 0 where the lane is 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, zero = arguments[1], ir.Constant(arguments[1].type, [0.0] * lanes.num)
        sizes = splat(builder, arguments[0], lanes.num)
        with_sign = call(builder, f"llvm.copysign.v{lanes.num}f32", value.type, [sizes, value])
        return builder.select(builder.fcmp_ordered("==", value, zero), zero, with_sign)

    return lanes(types.float32, lanes), generate


@intrinsic
def horizontal_sum(typingctx: Any, lanes: Any) -> Any:
    """The sum, float32: the upper half is added to the lower until one number is left."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,), num = arguments, lanes.num
        while num > 1:
            num //= 2
            undefined = ir.Constant(value.type, ir.Undefined)
            low, high = (
                builder.shuffle_vector(value, undefined, ir.Constant(ir.VectorType(INT32, num), list(part)))
                for part in (range(num), range(num, 2 * num))
            )
            value = builder.fadd(low, high)
        return builder.extract_element(value, INT32(0))

    return types.float32(lanes), generate
