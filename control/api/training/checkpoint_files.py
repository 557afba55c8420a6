"""`GET /training/files/{token}`: one file of a checkpoint, to whoever has a link to it, until the link expires.

Jobs choose the content, so no browser may take it for a page of this host.

See docs/reference/training.md#checkpoints.
"""

import base64
import logging
from urllib.parse import quote

from aiohttp import hdrs, web

from control.api.protocol.dependencies import DEPENDENCIES
from control.resources.training import checkpoints
from control.resources.training.download_links import Link
from policy.training.reports import CheckpointFile
from policy.training.store_keys import store_key
from runtime.http.server import keep
from runtime.log_lines import cause_of
from runtime.object_store import StoreError

log = logging.getLogger(__name__)


async def _get(request: web.Request) -> web.StreamResponse:
    dependencies = request.app[DEPENDENCIES]
    token = request.match_info["token"]
    link, file = await checkpoints.find_file(dependencies.store, dependencies.links, token)
    byte_range = _range(request, file)
    if byte_range is None:
        return web.Response(status=416, headers=_headers(file) | {hdrs.CONTENT_RANGE: f"bytes */{file.size_bytes}"})
    keep(request, link.workspace_id)
    with dependencies.downloads.taken(link.workspace_id):
        return await _download(request, link, file, byte_range)


async def _download(request: web.Request, link: Link, file: CheckpointFile, byte_range: range) -> web.StreamResponse:
    store = request.app[DEPENDENCIES].checkpoint_store
    async with store.reading(store_key(link.location, file.path), file.size_bytes, byte_range.start) as download:
        answer = _answer(file, byte_range)
        await answer.prepare(request)
        rest = 0 if request.method == hdrs.METH_HEAD else len(byte_range)
        try:
            async for piece in download.pieces():
                if rest <= 0:
                    break
                await answer.write(piece[:rest])
                rest -= len(piece)
        except StoreError as error:
            log.warning(
                "Download of a checkpoint's file was cut off: the store failed (%s). The client has to ask again. Check"
                " TOLLGATE_CHECKPOINT_STORE.",
                cause_of(error),
            )
        if rest > 0 and request.transport is not None:
            request.transport.abort()  # the caller must not take a part for the whole
    return answer


def _answer(file: CheckpointFile, byte_range: range) -> web.StreamResponse:
    answer = web.StreamResponse(headers=_headers(file))
    if len(byte_range) != file.size_bytes:
        answer.set_status(206)
        answer.headers[hdrs.CONTENT_RANGE] = f"bytes {byte_range.start}-{byte_range.stop - 1}/{file.size_bytes}"
    answer.content_length = len(byte_range)
    return answer


def _headers(file: CheckpointFile) -> dict[str, str]:
    name = file.path.rsplit("/", 1)[-1]
    return {
        hdrs.CONTENT_TYPE: "application/octet-stream",
        hdrs.CONTENT_DISPOSITION: f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        hdrs.ACCEPT_RANGES: "bytes",
        hdrs.ETAG: f'"{file.sha256}"',
        hdrs.CACHE_CONTROL: "private, no-store",
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(file.sha256)).decode()}:",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Referrer-Policy": "no-referrer",
    }


def _range(request: web.Request, file: CheckpointFile) -> range | None:
    """The bytes that are asked for; None if there are none of them. What is no single range asks for everything."""
    everything = range(file.size_bytes)
    try:
        part = request.http_range
    except ValueError:
        return everything
    is_same = request.headers.get(hdrs.IF_RANGE, f'"{file.sha256}"') == f'"{file.sha256}"'
    if hdrs.RANGE not in request.headers or not is_same:
        return everything
    return everything[part.start : part.stop] or None


ROUTES = [web.get("/training/files/{token}", _get, allow_head=True)]
