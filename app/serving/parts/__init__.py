"""Rows that lie on several servers: what the others are asked for, and what they ask of this one."""
