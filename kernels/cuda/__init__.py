"""The ops on one NVIDIA GPU: CUDA sources, and launchers on CuPy arrays."""
