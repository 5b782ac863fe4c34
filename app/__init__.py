"""Springtide as a program: command line, configuration, trainer, server, tools; see README.md in this folder."""
