"""The fast path of decoding: JSON bytes to columns without a Python object per record."""
