"""Dense nets as programs of few instructions, for batches too small for torch."""
