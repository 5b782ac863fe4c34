"""The CPU backend: Numba kernels, serial and without the GIL."""
