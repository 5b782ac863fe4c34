"""Routes of bases: the newest manifest, and the immutable files of a base, by range."""

import re
from pathlib import Path
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.errors import ApiError, gone, not_ready, refuse_if_fixed
from springtide.app.serving.http.responses import FileResponse, etag_matches
from springtide.app.serving.http.route import BINARY, ETAGS, FILE_STATUSES, JSON, NOT_MODIFIED, RANGES, RAW, Routes
from springtide_client.keys import INT64_MAX
from springtide_client.log.base import BaseManifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_name

routes = Routes("The model")

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@routes.add(
    "GET",
    "/v1/bases/latest",
    scope="read",
    response=BaseManifest,
    errors=(409, 503),
    headers=ETAGS,
    other_statuses=NOT_MODIFIED,
)
async def latest_base(request: Request) -> Response:
    """The newest base's manifest: its number, and the files that /v1/bases/{v}/files/{name} sends"""
    state = request.app.state
    refuse_if_fixed(state.fixed_version)

    def read() -> Response:
        path = LogDirectory(state.log.path).newest_base()
        if path is None:
            raise not_ready(state.replica.reason or "the log has no base yet")
        content, manifest = _manifest(path)
        etag = _etag(manifest, "manifest.json")
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if etag_matches(request.headers.get("if-none-match"), etag):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type="application/json")

    pool: BoundedPool = state.pools.files
    return await pool.run(read)


@routes.add(
    "GET",
    "/v1/bases/{v}/files/{name}",
    scope="read",
    response={RAW: BINARY, JSON: BaseManifest},
    errors=(404, 410, 422, 503),
    headers=RANGES,
    other_statuses=FILE_STATUSES,
    response_headers=("ETag",),
    head=True,
)
async def base_file(request: Request, v: int, name: str) -> Response:
    """One file of a base; immutable, with ranges and ETag"""
    state = request.app.state

    def open_file() -> Response:
        path: Path = state.log.path / base_name(v)
        if not 0 <= v <= INT64_MAX or not path.is_dir():
            raise gone(v, None)
        _, manifest = _manifest(path)
        if name != "manifest.json" and (name not in manifest["files"] or not FILE_NAME.fullmatch(name)):
            names = ", ".join(["manifest.json", *sorted(manifest["files"])])
            raise ApiError(404, "no_such_file", f"base {v} has no file {name!r}", f"its files are {names}")
        media_type = "application/json" if name == "manifest.json" else "application/octet-stream"
        return FileResponse(path / name, etag=_etag(manifest, name), media_type=media_type)

    pool: BoundedPool = state.pools.files
    return await pool.run(open_file)


def _manifest(path: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        content = (path / "manifest.json").read_bytes()
    except FileNotFoundError:
        raise ApiError(410, "gone", f"{path.name} was retired", "start again from /v1/bases/latest") from None
    return content, msgspec.json.decode(content)


def _etag(manifest: dict[str, Any], name: str) -> str:
    crc = manifest["files"].get(name, {}).get("crc32", 0)
    return f'"{manifest["number"]:x}-{manifest["checksum"]:x}-{crc:x}-{name}"'
