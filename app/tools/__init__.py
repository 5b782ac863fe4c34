"""Tools around a running model: replay of files, the click simulator, the demo."""
