"""Steps after a backward pass: clipping, accumulation, the optimizer, averages."""
