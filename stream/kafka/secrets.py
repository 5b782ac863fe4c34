"""Secrets of `[source] kafka`: read from the environment or a file when a client is made; kept out of texts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from springtide.stream.errors import AccessError

SECRET_WORDS = ("password", "secret", "token")  # in the names of options whose values no text may show
NOT_SECRET = ("sasl_oauth_token_url",)
HIDDEN = "***"


def read_secret(key: str, value: str) -> str:
    """The value of an option, that of a variable where it is "env:NAME", of a file's first line for "file:PATH".

    Raises AccessError, which names the variable or the file.
    """
    kind, colon, place = value.partition(":")
    if not colon or kind not in ("env", "file"):
        return value
    where = f'[source] kafka has {key} = "{value}", but'
    if kind == "env":
        secret = os.environ.get(place, "").strip()
        if not secret:
            raise AccessError(f"{where} the environment has no variable {place}, or an empty one: set it")
        return secret
    try:
        lines = Path(place).read_text(encoding="utf-8").strip().splitlines()
    except UnicodeDecodeError:
        raise AccessError(f"{where} the file is no text: put the secret on its first line") from None
    except OSError as error:
        raise AccessError(
            f"{where} the file cannot be read ({error.strerror}): create it, or its permissions"
        ) from None
    if not lines:
        raise AccessError(f"{where} the file is empty: put the secret on its first line")
    return lines[0].strip()


def read_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with "env:NAME" and "file:PATH" replaced by what is there now. Raises AccessError."""
    return {key: read_secret(key, value) if isinstance(value, str) else value for key, value in options.items()}


def is_secret(key: str) -> bool:
    """Return True if the option of this name holds a secret."""
    return key not in NOT_SECRET and any(word in key for word in SECRET_WORDS)


def hide_secrets(text: str, options: Mapping[str, Any]) -> str:
    """The text with the values of secret options, and of those read from elsewhere, replaced by asterisks."""
    for key, given in options.items():
        if not isinstance(given, str):
            continue
        try:
            value = read_secret(key, given)
        except AccessError:
            continue
        if value and (is_secret(key) or value != given):
            text = text.replace(value, HIDDEN)
    return text
