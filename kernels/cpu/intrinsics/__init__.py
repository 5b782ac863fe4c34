"""SIMD vectors, prefetch and raw memory access for Numba kernels."""
