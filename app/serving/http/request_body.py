"""The whole body of a request, for handlers that FastAPI does not see."""

from starlette.types import Receive

from springtide.app.serving.http.errors import body_too_large


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """Return the body; ApiError 413 beyond the limit, ConnectionResetError when the client is gone."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client disconnected before it had sent the whole request")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise body_too_large(max_bytes)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)
