"""`/training_uploads/{key}`: uploads, as S3's clients send them. A request is verified before its body is asked for.

See docs/reference/training.md#uploads.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from aiohttp import HttpVersion11, hdrs, web

from control.api.changes.request_ids import request_id_of
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.uploads.completions import MAX_BYTES, listed_parts
from control.api.uploads.part_bodies import BodyForm, PartBody
from control.api.uploads.s3_errors import (
    TABLE,
    XML_HEAD,
    S3Error,
    error_xml,
    members_xml,
    not_implemented,
    s3_error_of,
)
from control.api.uploads.signatures import Signature, SignedRequest, parameters
from control.dependencies import Dependencies
from control.records.training import PartRecord
from control.resources.uploads import removal, uploads
from control.resources.uploads.grants import BUCKET, REGION, Grant
from control.resources.uploads.uploads import MAX_PARTS, ListedPart
from policy.training.store_keys import part_key
from runtime.http.server import keep
from runtime.shares.places import NoPlaceError

_XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_UNDERSTOOD = {
    *("x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "x-amz-decoded-content-length", "x-amz-trailer"),
    *("x-amz-sdk-checksum-algorithm", "x-amz-checksum-algorithm", "x-amz-checksum-type", "x-amz-mp-object-size"),
    *("x-amz-checksum-crc32", "x-amz-checksum-sha1", "x-amz-checksum-sha256", "x-amz-user-agent", "x-amz-id-2"),
}
_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Call:
    """A verified request, and what it may do."""

    http: web.Request
    signed: SignedRequest
    grant: Grant
    parameters: dict[str, str]

    @property
    def dependencies(self) -> Dependencies:
        return self.http.app[DEPENDENCIES]


async def _handle(request: web.Request) -> web.StreamResponse:
    try:
        return await _answer(request)
    except S3Error as error:
        return _refusal(request, error)
    except tuple(TABLE) as error:
        return _refusal(request, s3_error_of(error))
    except NoPlaceError:
        message = "The workspace has its share of the uploads that may be under way at once; try again"
        return _refusal(request, S3Error(503, "SlowDown", message))
    except (web.RequestPayloadError, ConnectionError):
        return _refusal(request, S3Error(400, "IncompleteBody", "The body ended early, or violates HTTP"))


async def _answer(request: web.Request) -> web.StreamResponse:
    call = _verified(request)
    serve = _operation(call)
    keep(request, call.grant.workspace_id)
    with call.dependencies.uploads.taken(call.grant.workspace_id):
        return await serve(call)


def _verified(request: web.Request) -> _Call:
    """S3Error unless the holder of a grant for this very key has signed the request."""
    headers = [(name.lower(), value) for name, value in request.headers.items()]
    signed = SignedRequest(request.method, request.raw_path, headers)
    signature = Signature.of(signed)
    token = signed.header("x-amz-security-token")
    grant = None if token is None else request.app[DEPENDENCIES].grants.open(token)
    if grant is None:
        raise S3Error(400, "InvalidToken", "The session token is malformed; get GET /v1/blobs/credentials/train")
    if signature.access_key_id != grant.access_key_id or signature.region != REGION:
        raise S3Error(403, "InvalidAccessKeyId", f"The access key is not that of the session token, in {REGION}")
    now = datetime.now(UTC)
    signature.check(signed, grant.secret_access_key, now)
    if now.timestamp() * 1000 >= grant.expires_at_ms:
        raise S3Error(400, "ExpiredToken", "The keys have expired; get new ones: GET /v1/blobs/credentials/train")
    if request.match_info["key"] != grant.key:
        raise S3Error(403, "AccessDenied", "These keys are for another s3_key")
    return _Call(request, signed, grant, parameters(signed.target))


def _operation(call: _Call) -> Callable[[_Call], Awaitable[web.StreamResponse]]:
    """The handler of what S3 calls by method and parameters. S3Error for what is not taken."""
    for name, _ in call.signed.headers:
        if (name.startswith("x-amz-") and name not in _UNDERSTOOD) or name in _CONDITIONS:
            raise not_implemented(f"The header {name}")
    match (call.signed.method, sorted(call.parameters.keys() - {"x-id"})):
        case ("PUT", []):
            return _put_object
        case ("PUT", ["partNumber", "uploadId"]):
            return _upload_part
        case ("POST", ["uploads"]):
            return _create
        case ("POST", ["uploadId"]):
            return _complete
        case ("DELETE", ["uploadId"]):
            return _abort
        case (method, names):
            raise not_implemented(f"{method} of an upload{' with ' if names else ''}{', '.join(names)}")


async def _create(call: _Call) -> web.Response:
    upload_id = await uploads.begin_upload(call.dependencies.store, call.grant)
    return _xml("InitiateMultipartUploadResult", Bucket=BUCKET, Key=call.grant.key, UploadId=upload_id)


async def _upload_part(call: _Call) -> web.Response:
    number = call.parameters["partNumber"]
    if not (number.isascii() and number.isdecimal() and 1 <= int(number[:6]) <= MAX_PARTS):
        raise S3Error(400, "InvalidArgument", f"partNumber must be 1 to {MAX_PARTS}")
    part = await _store_part(call, call.parameters["uploadId"], int(number[:6]))
    return web.Response(headers={hdrs.ETAG: f'"{part.etag}"'})


async def _put_object(call: _Call) -> web.Response:
    """An upload of one part."""
    store = call.dependencies.store
    upload_id = await uploads.begin_upload(store, call.grant)
    try:
        part = await _store_part(call, upload_id, 1)
        await _finish(call, upload_id, [ListedPart(1, part.etag or "")])
    except BaseException:
        upload = await uploads.abort_upload(store, call.grant, upload_id)
        await removal.remove_upload(store, call.dependencies.checkpoint_store, upload)
        raise
    return web.Response(headers={hdrs.ETAG: f'"{part.etag}"'})


async def _complete(call: _Call) -> web.Response:
    await _ask_for_body(call.http)
    body = bytearray()
    async for piece in call.http.content.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            raise S3Error(400, "MaxMessageLengthExceeded", "The list of parts is too long")
    etag = await _finish(call, call.parameters["uploadId"], listed_parts(bytes(body)))
    location = f"{call.http.path}"
    answer = {"Location": location, "Bucket": BUCKET, "Key": call.grant.key, "ETag": f'"{etag}"'}
    return _xml("CompleteMultipartUploadResult", **answer)


async def _abort(call: _Call) -> web.Response:
    store = call.dependencies.store
    upload = await uploads.abort_upload(store, call.grant, call.parameters["uploadId"])
    await removal.remove_upload(store, call.dependencies.checkpoint_store, upload)
    return web.Response(status=204)


async def _store_part(call: _Call, upload_id: str, number: int) -> PartRecord:
    """Write a part into the store. One that does not arrive, or not as its sender says, leaves nothing."""
    store = call.dependencies.store
    form = BodyForm.of(call.signed)
    call.dependencies.checkpoint_store.check()
    part = await uploads.begin_part(store, call.grant, upload_id, number, form.size_bytes)
    body = PartBody(call.http.content, form)
    try:
        await _ask_for_body(call.http)
        await call.dependencies.checkpoint_store.write(part_key(upload_id, part.id), form.size_bytes, body)
        whole = replace(part, sha256=body.sha256, etag=body.etag)
        replaced = await uploads.finish_part(store, call.grant, whole)
    except BaseException:
        body.stop()
        if await removal.remove_parts(call.dependencies.checkpoint_store, [part]):
            await uploads.forget_part(store, part)
        raise
    await removal.remove_parts(call.dependencies.checkpoint_store, replaced)
    return whole


async def _finish(call: _Call, upload_id: str, listed: list[ListedPart]) -> str:
    store = call.dependencies.store
    completed = await uploads.complete_upload(store, call.grant, upload_id, listed)
    await removal.remove_parts(call.dependencies.checkpoint_store, completed.left_over)
    if completed.replaced is not None:
        await removal.remove_upload(store, call.dependencies.checkpoint_store, completed.replaced)
    return completed.etag


async def _no_answer_yet(_request: web.Request) -> None:
    """Leave `Expect: 100-continue` to the handler, which verifies the request first."""


async def _ask_for_body(request: web.Request) -> None:
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun


def _xml(root: str, **members: str) -> web.Response:
    text = f"{XML_HEAD}<{root} {_XMLNS}>{members_xml(members)}</{root}>"
    return web.Response(text=text, content_type="application/xml")


def _refusal(request: web.Request, error: S3Error) -> web.Response:
    text = error_xml(error, request.path, request_id_of(request))
    answer = web.Response(status=error.status, text=text, content_type="application/xml")
    if not request.content.is_eof():
        answer.force_close()  # nobody reads the rest of the body
    return answer


_route = partial(web.route, path=f"/{BUCKET}/{{key}}", handler=_handle, expect_handler=_no_answer_yet)
ROUTES = [_route(method) for method in ("GET", "PUT", "POST", "DELETE")]
