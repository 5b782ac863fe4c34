"""Springtide as a program: the command line, the trainer, the server, the simulator; see README.md in this folder."""
