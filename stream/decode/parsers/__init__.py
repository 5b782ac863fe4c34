"""The fast paths of decoding: bytes to columns without a Python object per record."""
