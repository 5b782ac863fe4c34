"""Content negotiation of batch lookups: the media types of request and response, chosen by their headers."""

import re
from dataclasses import dataclass
from functools import lru_cache

from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.http.route import ARROW, JSON, MSGPACK, RAW

MEDIA_TYPES = (JSON, MSGPACK, ARROW, RAW)
QUALITY = re.compile(r";\s*[qQ]=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\s*(?:;|$)")


@dataclass(frozen=True)
class MediaType:
    """A media type, and the width of its numbers (raw bytes only)."""

    name: str
    float16: bool = False


@lru_cache(maxsize=256)
def parse_content_type(content_type: str) -> MediaType:
    """The media type of a Content-Type header, empty for JSON; ApiError 415 if it is not supported."""
    name, float16 = _split(content_type or JSON)
    if name not in MEDIA_TYPES:
        raise ApiError(415, "unsupported_media_type", f"{name} is not supported", f"send {', '.join(MEDIA_TYPES)}")
    return MediaType(name, float16)


@lru_cache(maxsize=256)
def negotiate_media_type(accept: str, request_type: MediaType) -> MediaType:
    """Choose the response's media type: the one that an Accept header prefers, the first among equals.

    A wildcard or an empty header means the request's own type; ApiError 406 if none is supported.
    """
    for part in sorted(accept.split(","), key=_quality, reverse=True):
        name, float16 = _split(part)
        if not _quality(part):
            break
        if name in ("", "*/*", "application/*"):
            return request_type
        if name in MEDIA_TYPES:
            return MediaType(name, float16)
    raise ApiError(
        406, "not_acceptable", f"responses of type {accept[:80]} are not supported", f"accept {', '.join(MEDIA_TYPES)}"
    )


def _split(part: str) -> tuple[str, bool]:
    name, *parameters = part.strip().lower().split(";")
    return name.strip(), any(parameter.replace(" ", "").replace('"', "") == "dtype=float16" for parameter in parameters)


def _quality(part: str) -> float:
    """The `q` of a media range, by default 1."""
    match = QUALITY.search(part)
    return 1.0 if match is None else float(match[1])
