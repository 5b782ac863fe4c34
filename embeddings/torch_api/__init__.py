"""The table as a torch module for anyone: `DynamicEmbedding`."""
