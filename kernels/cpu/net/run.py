"""Runs a net's program: all samples forward, then all samples backward, each as one compiled call.

A net of an online learner is small and so are its batches: calls of single operators would cost ten times what they
compute. Samples are handled a chunk at a time, so that a chunk's columns stay in the cache. Sums over samples go in
their order: a result depends on neither threads nor time.
"""

# N samples, W columns, P parameters and statistics, L labels, C samples of a chunk
import math
from typing import Any

import numpy as np

from springtide.kernels.cpu.net.program import (
    ADD,
    CALIBRATE,
    COPY,
    LINEAR,
    MULTIPLY,
    PARAMETER,
    PRODUCTS,
    RELU,
    SCALE,
    SIGMOID,
    SOFTMAX,
    STANDARDIZE,
    SUBTRACT,
    SUM,
    TANH,
)
from springtide.kernels.njit import njit

CHUNK = 64  # samples
MAX_DEVIATIONS, VARIANCE_FLOOR = np.float32(5.0), np.float32(1e-4)  # as in app/models/layers.py

# sums may be taken apart into vectors; what is not a number stays what it is
_compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
ZERO, ONE = np.float32(0), np.float32(1)


@_compiled
def forward(instructions_IO: Any, indices_X: Any, constants_A: Any, parameters_P: Any, columns_NW: Any) -> None:
    """Fill the columns of every sample; those of its inputs are given."""
    for start in range(0, len(columns_NW), CHUNK):
        stop = min(len(columns_NW), start + CHUNK)
        for i in range(len(instructions_IO)):
            _forward(instructions_IO[i], indices_X, constants_A, parameters_P, columns_NW, start, stop)


@_compiled
def backward(
    instructions_IO: Any,
    indices_X: Any,
    constants_A: Any,
    needs_gradient_W: Any,
    parameters_P: Any,
    columns_NW: Any,
    errors_NL: Any,
    outputs_L: Any,
    gradients_P: Any,
    gradients_CW: Any,
    rows_NR: Any,
) -> None:
    """Add up the parameters' gradients, and write those of the first columns, which are rows of tables.

    `errors_NL`: derivatives of the loss by the columns `outputs_L`. `gradients_CW` is scratch.
    """
    gradients_P[:] = ZERO
    for start in range(0, len(columns_NW), CHUNK):
        stop = min(len(columns_NW), start + CHUNK)
        for n in range(stop - start):
            gradients_CW[n, :] = ZERO
            for label in range(len(outputs_L)):
                gradients_CW[n, outputs_L[label]] += errors_NL[start + n, label]
        for i in range(len(instructions_IO) - 1, -1, -1):
            _backward(
                instructions_IO[i],
                indices_X,
                constants_A,
                needs_gradient_W,
                parameters_P,
                columns_NW,
                gradients_P,
                gradients_CW,
                start,
                stop,
            )
        for n in range(stop - start):
            for r in range(rows_NR.shape[1]):
                rows_NR[start + n, r] = gradients_CW[n, r]


@_compiled
def _forward(o: Any, indices_X: Any, constants_A: Any, parameters_P: Any, x_NW: Any, start: int, stop: int) -> None:
    op, source, width, out = o[0], o[1], o[2], o[3]
    if op == LINEAR:
        _linear(x_NW, start, stop, source, width, out, o[4], parameters_P, o[5], o[6])
        return
    for n in range(start, stop):
        x_W = x_NW[n]
        if op == RELU:
            for k in range(width):
                x = x_W[source + k]
                x_W[out + k] = ZERO if x < ZERO else x
        elif op == COPY:
            for run in range(width):
                at = o[4] + 3 * run
                first, to = indices_X[at], indices_X[at + 1]
                for k in range(indices_X[at + 2]):
                    x_W[to + k] = x_W[first + k]
        elif op == ADD:
            for k in range(width):
                x_W[out + k] = x_W[source + k] + x_W[o[4] + k]
        elif op == SUBTRACT:
            for k in range(width):
                x_W[out + k] = x_W[source + k] - x_W[o[4] + k]
        elif op == MULTIPLY:
            for k in range(width):
                x_W[out + k] = x_W[source + k] * x_W[o[4] + k]
        elif op == SCALE:
            factor, shift = constants_A[o[4]], constants_A[o[4] + 1]
            for k in range(width):
                x_W[out + k] = factor * x_W[source + k] + shift
        elif op == SUM:
            num_summed, inner = o[4], o[5]
            for outer in range(width):
                for k in range(inner):
                    x_W[out + outer * inner + k] = ZERO
                for j in range(num_summed):
                    at = source + (outer * num_summed + j) * inner
                    for k in range(inner):
                        x_W[out + outer * inner + k] += x_W[at + k]
        elif op == PRODUCTS:
            for pair in range(width):
                at = o[4] + 3 * pair
                first, second = indices_X[at], indices_X[at + 1]
                total = ZERO
                for k in range(o[5]):
                    total += x_W[first + k] * x_W[second + k]
                x_W[indices_X[at + 2]] = total
        elif op == PARAMETER:
            for k in range(width):
                x_W[out + k] = parameters_P[source + k]
        elif op == SIGMOID:
            for k in range(width):
                x_W[out + k] = ONE / (ONE + math.exp(-x_W[source + k]))
        elif op == TANH:
            for k in range(width):
                x_W[out + k] = math.tanh(x_W[source + k])
        elif op == SOFTMAX:
            for outer in range(width):
                _softmax(x_W, source + outer * o[4], out + outer * o[4], o[4])
        elif op == STANDARDIZE:
            for f in range(width):
                _standardize(x_W, source + f, out + f, width, parameters_P, o[4] + f, o[5] + f, o[6] + f)
        elif op == CALIBRATE:
            for k in range(width):
                bias, rate, trust = parameters_P[o[4] + k], parameters_P[o[5] + k], parameters_P[o[6] + k]
                x_W[out + k] = math.log(rate / (ONE - rate)) + trust * (bias + x_W[source + k])


@_compiled
def _backward(
    o: Any,
    indices_X: Any,
    constants_A: Any,
    needs_gradient_W: Any,
    parameters_P: Any,
    x_NW: Any,
    gradients_P: Any,
    g_CW: Any,
    start: int,
    stop: int,
) -> None:
    op, source, width, out = o[0], o[1], o[2], o[3]
    if op == LINEAR:
        has_input = needs_gradient_W[source : source + width].any()
        _linear_backward(
            x_NW, g_CW, start, stop, source, width, out, o[4], parameters_P, gradients_P, o[5], o[6], has_input
        )
        return
    for n in range(start, stop):
        x_W, g_W = x_NW[n], g_CW[n - start]
        if op == RELU:
            for k in range(width):
                if not x_W[out + k] <= ZERO:
                    g_W[source + k] += g_W[out + k]
        elif op == COPY:
            for run in range(width):
                at = o[4] + 3 * run
                first, to = indices_X[at], indices_X[at + 1]
                for k in range(indices_X[at + 2]):
                    g_W[first + k] += g_W[to + k]
        elif op == ADD:
            for k in range(width):
                g_W[source + k] += g_W[out + k]
            for k in range(width):
                g_W[o[4] + k] += g_W[out + k]
        elif op == SUBTRACT:
            for k in range(width):
                g_W[source + k] += g_W[out + k]
            for k in range(width):
                g_W[o[4] + k] -= g_W[out + k]
        elif op == MULTIPLY:
            for k in range(width):
                g_W[source + k] += g_W[out + k] * x_W[o[4] + k]
            for k in range(width):
                g_W[o[4] + k] += g_W[out + k] * x_W[source + k]
        elif op == SCALE:
            factor = constants_A[o[4]]
            for k in range(width):
                g_W[source + k] += factor * g_W[out + k]
        elif op == SUM:
            num_summed, inner = o[4], o[5]
            for outer in range(width):
                for j in range(num_summed):
                    at = source + (outer * num_summed + j) * inner
                    for k in range(inner):
                        g_W[at + k] += g_W[out + outer * inner + k]
        elif op == PRODUCTS:
            for pair in range(width):
                at = o[4] + 3 * pair
                first, second, g = indices_X[at], indices_X[at + 1], g_W[indices_X[at + 2]]
                for k in range(o[5]):
                    g_W[first + k] += g * x_W[second + k]
                for k in range(o[5]):
                    g_W[second + k] += g * x_W[first + k]
        elif op == PARAMETER:
            for k in range(width):
                gradients_P[source + k] += g_W[out + k]
        elif op == SIGMOID:
            for k in range(width):
                g_W[source + k] += g_W[out + k] * x_W[out + k] * (ONE - x_W[out + k])
        elif op == TANH:
            for k in range(width):
                g_W[source + k] += g_W[out + k] * (ONE - x_W[out + k] * x_W[out + k])
        elif op == SOFTMAX:
            for outer in range(width):
                first, to, total = source + outer * o[4], out + outer * o[4], ZERO
                for k in range(o[4]):
                    total += g_W[to + k] * x_W[to + k]
                for k in range(o[4]):
                    g_W[first + k] += x_W[to + k] * (g_W[to + k] - total)
        elif op == CALIBRATE:
            for k in range(width):
                g = g_W[out + k] * parameters_P[o[6] + k]
                gradients_P[o[4] + k] += g
                g_W[source + k] += g


@_compiled
def _linear(
    x_NW: Any,
    start: int,
    stop: int,
    source: int,
    width: int,
    out: int,
    out_width: int,
    parameters_P: Any,
    weight: int,
    bias: int,
) -> None:
    """Four samples at a time: each weight is loaded once for them."""
    n = start
    while n + 4 <= stop:
        a_I, b_I = x_NW[n, source : source + width], x_NW[n + 1, source : source + width]
        c_I, d_I = x_NW[n + 2, source : source + width], x_NW[n + 3, source : source + width]
        for j in range(out_width):
            w_I = parameters_P[weight + j * width : weight + (j + 1) * width]
            a = b = c = d = ZERO
            for k in range(width):
                w = w_I[k]
                a += w * a_I[k]
                b += w * b_I[k]
                c += w * c_I[k]
                d += w * d_I[k]
            shift = parameters_P[bias + j] if bias >= 0 else ZERO
            x_NW[n, out + j], x_NW[n + 1, out + j] = a + shift, b + shift
            x_NW[n + 2, out + j], x_NW[n + 3, out + j] = c + shift, d + shift
        n += 4
    while n < stop:
        a_I = x_NW[n, source : source + width]
        for j in range(out_width):
            w_I = parameters_P[weight + j * width : weight + (j + 1) * width]
            a = ZERO
            for k in range(width):
                a += w_I[k] * a_I[k]
            x_NW[n, out + j] = a + (parameters_P[bias + j] if bias >= 0 else ZERO)
        n += 1


@_compiled
def _linear_backward(
    x_NW: Any,
    g_CW: Any,
    start: int,
    stop: int,
    source: int,
    width: int,
    out: int,
    out_width: int,
    parameters_P: Any,
    gradients_P: Any,
    weight: int,
    bias: int,
    has_input: bool,
) -> None:
    """The weights' gradients, four samples at a time; then the inputs', four outputs at a time."""
    n = start
    while n + 4 <= stop:
        a_I, b_I = x_NW[n, source : source + width], x_NW[n + 1, source : source + width]
        c_I, d_I = x_NW[n + 2, source : source + width], x_NW[n + 3, source : source + width]
        m = n - start
        for j in range(out_width):
            a, b, c, d = g_CW[m, out + j], g_CW[m + 1, out + j], g_CW[m + 2, out + j], g_CW[m + 3, out + j]
            if a == ZERO and b == ZERO and c == ZERO and d == ZERO:
                continue
            if bias >= 0:
                gradients_P[bias + j] += a + b + c + d
            g_I = gradients_P[weight + j * width : weight + (j + 1) * width]
            for k in range(width):
                g_I[k] += a * a_I[k] + b * b_I[k] + c * c_I[k] + d * d_I[k]
        n += 4
    while n < stop:
        a_I = x_NW[n, source : source + width]
        for j in range(out_width):
            a = g_CW[n - start, out + j]
            if a == ZERO:
                continue
            if bias >= 0:
                gradients_P[bias + j] += a
            g_I = gradients_P[weight + j * width : weight + (j + 1) * width]
            for k in range(width):
                g_I[k] += a * a_I[k]
        n += 1
    if not has_input:
        return
    j = 0
    while j + 4 <= out_width:
        at, to = weight + j * width, out + j
        a_I, b_I = parameters_P[at : at + width], parameters_P[at + width : at + 2 * width]
        c_I, d_I = parameters_P[at + 2 * width : at + 3 * width], parameters_P[at + 3 * width : at + 4 * width]
        for m in range(stop - start):
            a, b, c, d = g_CW[m, to], g_CW[m, to + 1], g_CW[m, to + 2], g_CW[m, to + 3]
            g_I = g_CW[m, source : source + width]
            for k in range(width):
                g_I[k] += a * a_I[k] + b * b_I[k] + c * c_I[k] + d * d_I[k]
        j += 4
    while j < out_width:
        at = weight + j * width
        a_I = parameters_P[at : at + width]
        for m in range(stop - start):
            a, g_I = g_CW[m, out + j], g_CW[m, source : source + width]
            for k in range(width):
                g_I[k] += a * a_I[k]
        j += 1


@_compiled
def _softmax(x_W: Any, source: int, out: int, width: int) -> None:
    greatest = x_W[source]
    for k in range(1, width):
        greatest = max(greatest, x_W[source + k])
    total = ZERO
    for k in range(width):
        x_W[out + k] = math.exp(x_W[source + k] - greatest)
        total += x_W[out + k]
    for k in range(width):
        x_W[out + k] /= total


@_compiled
def _standardize(
    x_W: Any, source: int, out: int, width: int, parameters_P: Any, mean: int, variance: int, count: int
) -> None:
    """The value, then at a distance of `width` whether it is missing."""
    x = x_W[source]
    is_missing = math.isnan(x)
    x_W[out + width] = ONE if is_missing else ZERO
    if is_missing or parameters_P[count] == ZERO:
        x_W[out] = ZERO
        return
    size = np.float32(math.log1p(abs(x)))
    logarithm = -size if x < ZERO else size
    scale = ONE / np.float32(math.sqrt(parameters_P[variance] + VARIANCE_FLOOR))
    x_W[out] = min(MAX_DEVIATIONS, max(-MAX_DEVIATIONS, (logarithm - parameters_P[mean]) * scale))
