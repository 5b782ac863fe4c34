"""The CPU twin: Numba kernels, serial and without the GIL."""
