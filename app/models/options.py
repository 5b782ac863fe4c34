"""Checks of a model's options: each returns the option, or raises a ValueError that says what it must be."""

from collections.abc import Sequence

LARGEST_SIZE = 65536


def check_size(name: str, size: object, *, least: int = 1) -> int:
    """Return a whole number from `least` to 65536."""
    if type(size) is not int or not least <= size <= LARGEST_SIZE:
        raise ValueError(f"{name} must be a whole number from {least} to {LARGEST_SIZE}, not {size!r}")
    return size


def check_choice(name: str, choice: object, choices: Sequence[str]) -> str:
    """Return one of the choices."""
    if choice not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {choice!r}")
    return str(choice)


def check_names(name: str, names: object) -> list[str]:
    """Return a list of names."""
    if not isinstance(names, (list, tuple)) or not all(isinstance(one, str) for one in names):
        raise ValueError(f'{name} must be a list of names such as ["user_id"], not {names!r}')
    return list(names)
