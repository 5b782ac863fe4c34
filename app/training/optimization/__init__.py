"""What follows a backward pass: clipping, accumulation, the optimizer, averages."""
