"""Tables in torch: rows as tensors with gradients, and `DynamicEmbedding`, a module for any torch model."""
