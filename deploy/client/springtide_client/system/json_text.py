"""JSON from outside this process: a file that a power loss has damaged, a server's response, a user's line."""

from typing import Any

import msgspec


def decode_json(content: bytes, type: Any = Any) -> Any:
    """Decode JSON into this type. msgspec.DecodeError also for bytes that are no UTF-8, and for nesting too deep."""
    try:
        return msgspec.json.decode(content, type=type)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from None
