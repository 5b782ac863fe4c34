// Numbers as they are kept (float32, bfloat16 as its bits, float64) and as they are reckoned with.
#pragma once
#include "portable.cuh"

INLINE float widened(float number) { return number; }
INLINE float widened(u16 bits) { return float_of_bits((u32)bits << 16); }
INLINE double widened(double number) { return number; }

// To the nearest, the even one of two; NaN stays NaN.
INLINE void narrow(float number, float& to) { to = number; }
INLINE void narrow(float number, u16& to) {
  u32 bits = bits_of_float(number);
  to = (u16)((number != number ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
INLINE void narrow(double number, double& to) { to = number; }
