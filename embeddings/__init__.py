"""Tables of embeddings without a fixed vocabulary; see README.md in this folder."""
