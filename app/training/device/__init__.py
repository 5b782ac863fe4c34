"""Host or GPU: transfers, pinned buffers, graph capture."""
