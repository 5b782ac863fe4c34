"""The inner loops of tables, serving and the wide part, for CPU and GPU; see README.md in this folder."""
