"""The HTTP server below control's application: what breaks HTTP's rules is refused in our words.

aiohttp would quote the offending bytes in its answer and in its log, and they may hold an API key.
"""

import asyncio
import logging
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

_REFUSAL = '{"error": "The request breaks a rule of HTTP", "code": "INVALID_REQUEST"}'
MAX_TARGET_BYTES = 65_536
log = logging.getLogger(__name__)


class FrontRunner(web.AppRunner):
    """Runs an application behind connections of our own."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Front(made.request_handler, request_factory=made.request_factory)


class _Front(web.Server):
    def __call__(self) -> web.RequestHandler:
        loop = asyncio.get_running_loop()
        # A query may name a thousand keys. `access_log`: None is none.
        return _Connection(self, loop=loop, access_log=None, max_line_size=MAX_TARGET_BYTES)  # type: ignore[arg-type]


class _Connection(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """400 and the end of the connection; nothing of `exc` or `message` but the kind."""
        log.info("malformed request from %s: %s", request.remote, type(exc).__name__)
        writer: AbstractStreamWriter | Any = request.writer
        if writer.output_size > 0:
            raise ConnectionResetError
        answer = web.Response(status=status, text=_REFUSAL, content_type="application/json")
        answer.force_close()
        return answer
