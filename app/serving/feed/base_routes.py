"""Base images and snapshots: immutable files, by range."""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from springtide_client.keys import INT64_MAX
from springtide_client.log.directory import LogDirectory
from starlette.responses import Response

from app.serving.http.errors import ApiError, gone, invalid, not_ready
from app.serving.http.responses import FileResponse, etag_matches
from app.serving.service import Service

router = APIRouter(tags=["The model"])

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@router.get("/v1/bases/latest")
async def latest(request: Request) -> Response:
    """The newest base's manifest: its number, and the files that /v1/bases/{v}/files/{name} gives"""
    service: Service = request.app.state.service

    def read() -> Response:
        path = LogDirectory(service.log_path).newest_base()
        if path is None:
            raise not_ready(service.replica.reason or "the log has no base yet")
        content, manifest = _manifest(path)
        etag = _etag(manifest, "manifest.json")
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if etag_matches(request.headers.get("if-none-match"), etag):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type="application/json")

    return await service.files.run(read)


@router.head("/v1/bases/{v}/files/{name}", include_in_schema=False)
@router.get("/v1/bases/{v}/files/{name}")
async def file(request: Request, v: int, name: str) -> Response:
    """One file of a base; immutable, with ranges and ETag"""
    service: Service = request.app.state.service

    def open_file() -> Response:
        path = service.log_path / f"base-{v:020d}"
        if not 0 <= v <= INT64_MAX or not path.is_dir():
            raise gone(v, None)
        _, manifest = _manifest(path)
        if name != "manifest.json" and (name not in manifest["files"] or not FILE_NAME.fullmatch(name)):
            names = ", ".join(["manifest.json", *sorted(manifest["files"])])
            raise ApiError(404, "no_such_file", f"base {v} has no file {name!r}", f"its files are {names}")
        media_type = "application/json" if name == "manifest.json" else "application/octet-stream"
        return FileResponse(path / name, etag=_etag(manifest, name), media_type=media_type)

    return await service.files.run(open_file)


@router.head("/v1/snapshot", include_in_schema=False)
@router.get("/v1/snapshot")
async def snapshot(
    request: Request, version: Annotated[int | None, Query(ge=0)] = None, rows: Annotated[str, Query()] = "all"
) -> Response:
    """The model at one version, as one self-contained file

    safetensors layout: dense.*, rows.*, texts.* and the exported program; the manifest is in its metadata.
    rows=none leaves the rows out. Resumable: ask again with the version of the answer, a Range and If-Range.
    """
    service: Service = request.app.state.service
    if rows not in ("all", "none"):
        raise invalid(f"rows = {rows!r}", "rows is all or none")
    view = service.replica.require_view()
    wanted = view.version if version is None else version
    if wanted > view.version:
        raise gone(wanted, service.replica.versions.oldest)

    def make() -> FileResponse:
        made = service.snapshots.get(view.client_view, wanted, rows=rows)
        answer = FileResponse(made.path, etag=made.etag)
        answer.extra_headers = {
            "x-springtide-version": str(wanted),
            "content-disposition": f'attachment; filename="springtide-{wanted}.safetensors"',
        }
        return answer

    return await service.snapshot_work.run(make)


def _manifest(path: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        content = (path / "manifest.json").read_bytes()
    except FileNotFoundError:
        raise ApiError(410, "gone", f"{path.name} was retired", "start again from /v1/bases/latest") from None
    return content, msgspec.json.decode(content)


def _etag(manifest: dict[str, Any], name: str) -> str:
    crc = manifest["files"].get(name, {}).get("crc32", 0)
    return f'"{manifest["number"]:x}-{manifest["checksum"]:x}-{crc:x}-{name}"'
