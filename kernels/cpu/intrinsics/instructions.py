"""Instructions that Numba does not offer by name: prefetch, trailing zeros, sixteen bytes or words compared at once."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BYTE_POINTER = ir.IntType(8).as_pointer()


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Asks for the cache line of a contiguous array's element, for reading; the index is not checked."""
    signature = types.void(array, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        return _prefetch(context, builder, builder.bitcast(builder.gep(struct.data, [arguments[1]]), BYTE_POINTER))

    return signature, generate


@intrinsic
def prefetch_address(typingctx: Any, address: Any) -> Any:
    """Asks for the cache line at an address, for reading."""
    signature = types.void(types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _prefetch(context, builder, builder.inttoptr(arguments[0], BYTE_POINTER))

    return signature, generate


def _prefetch(context: Any, builder: Any, pointer: Any) -> Any:
    int32 = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [BYTE_POINTER, int32, int32, int32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [pointer, int32(0), int32(3), int32(1)])
    return context.get_dummy_value()


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    """Of a uint64 that is not 0."""
    signature = types.uint64(types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return signature, generate


@intrinsic
def equal_bytes(typingctx: Any, array: Any, index: Any, byte: Any) -> Any:
    """Which of the 16 bytes from a multiple of 16 on equal a byte: a uint64 with bit i for byte i; not checked."""
    signature = types.uint64(array, index, types.uint8)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        bytes_16 = ir.VectorType(ir.IntType(8), 16)
        address = builder.bitcast(builder.gep(struct.data, [arguments[1]]), bytes_16.as_pointer())
        wanted = _sixteen_of(builder, bytes_16, arguments[2])
        equal = builder.icmp_unsigned("==", builder.load(address, align=16), wanted)
        return builder.zext(builder.bitcast(equal, ir.IntType(16)), ir.IntType(64))

    return signature, generate


@intrinsic
def lowest_words(typingctx: Any, array: Any, index: Any, mask: Any, limit: Any) -> Any:
    """Which of the 16 words from a multiple of 8 on are the lowest as int64 among those with word & mask < limit.

    A uint64 with bit i for word i, 0 where there is none; the index is not checked.
    """
    signature = types.uint64(array, index, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        int64, words_16 = ir.IntType(64), ir.VectorType(ir.IntType(64), 16)
        address = builder.bitcast(builder.gep(struct.data, [arguments[1]]), words_16.as_pointer())
        words = builder.load(address, align=64)
        masked = builder.and_(words, _sixteen_of(builder, words_16, arguments[2]))
        counts = builder.icmp_signed("<", masked, _sixteen_of(builder, words_16, arguments[3]))
        counted = builder.select(counts, words, ir.Constant(words_16, [2**63 - 1] * 16))
        kind, name = ir.FunctionType(int64, [words_16]), "llvm.vector.reduce.smin.v16i64"
        lowest = builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [counted])
        equal = builder.icmp_signed("==", words, _sixteen_of(builder, words_16, lowest))
        return builder.zext(builder.bitcast(builder.and_(counts, equal), ir.IntType(16)), int64)

    return signature, generate


def _sixteen_of(builder: Any, kind: Any, number: Any) -> Any:
    """A vector with the number in every lane."""
    nothing, int32 = ir.Constant(kind, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(nothing, number, int32(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(int32, 16), [0] * 16))


def _make_load(kind: Any, llvm_kind: Any) -> Any:
    def read(typingctx: Any, address: Any, index: Any) -> Any:
        """Element `index` of an array that begins at the address."""
        signature = kind(types.int64, types.int64)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], llvm_kind.as_pointer())
            return builder.load(builder.gep(pointer, [arguments[1]]), align=1)

        return signature, generate

    return intrinsic(read)


read_uint8 = _make_load(types.uint8, ir.IntType(8))
read_uint16 = _make_load(types.uint16, ir.IntType(16))
read_uint32 = _make_load(types.uint32, ir.IntType(32))
read_int64 = _make_load(types.int64, ir.IntType(64))
read_uint64 = _make_load(types.uint64, ir.IntType(64))


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """memcpy between two addresses."""
    signature = types.void(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin = (builder.inttoptr(argument, BYTE_POINTER) for argument in arguments[:2])
        cgutils.raw_memcpy(builder, to, origin, arguments[2], ir.IntType(64)(1))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def multiply_high(typingctx: Any, left: Any, right: Any) -> Any:
    """The upper 64 of the 128 bits of a product of two uint64."""
    signature = types.uint64(types.uint64, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        left, right = (builder.zext(argument, wide) for argument in arguments)
        return builder.trunc(builder.lshr(builder.mul(left, right), wide(64)), ir.IntType(64))

    return signature, generate


def _make_store(kind: Any, llvm_kind: Any) -> Any:
    def write(typingctx: Any, address: Any, word: Any) -> Any:
        """The bytes of a word from an address on."""
        signature = types.void(types.int64, kind)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(arguments[1], builder.inttoptr(arguments[0], llvm_kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(write)


write_uint8 = _make_store(types.uint8, ir.IntType(8))
write_uint64 = _make_store(types.uint64, ir.IntType(64))


@intrinsic
def leading_zeros(typingctx: Any, word: Any) -> Any:
    """Of a uint64; 64 of 0."""
    signature = types.uint64(types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.IntType(1)(0))

    return signature, generate


@intrinsic
def bits_of_float32(typingctx: Any, number: Any) -> Any:
    """A float32 as the uint32 of its bits."""
    signature = types.uint32(types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return signature, generate


@intrinsic
def float64_from_bits(typingctx: Any, bits: Any) -> Any:
    """The float64 of a uint64's bits."""
    signature = types.float64(types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return signature, generate
