"""The HTTP session of an exporter. Bounds what it reads of an answer, and knows the fault of the last request.

The library takes redirects and pages of HTML for success, reads whatever comes, and writes URLs into its log.
"""

import logging
from collections.abc import Callable
from typing import Any

import requests
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

MAX_ANSWER_BYTES = 65_536
PROTOBUF = "application/x-protobuf"
_LOGGED_BY_US = ("opentelemetry.exporter", "urllib3")
"""Loggers of the libraries that would write a line per failed request, some with the collector's URL."""
_CAUSES = (
    (requests.exceptions.SSLError, "the TLS handshake failed"),
    (requests.exceptions.Timeout, "no answer in time"),
    (requests.exceptions.ConnectionError, "no connection"),
)


class CollectorSession(requests.Session):
    """`rejected` says how much of what was sent an answer of the collector rejects."""

    def __init__(self, rejected: Callable[[bytes], int]) -> None:
        super().__init__()
        for name in _LOGGED_BY_US:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._rejected = rejected
        self.cause = ""
        """The fault of the last request, without URL or content, in the same words each time; "" if it had none."""

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        try:
            response = super().request(*args, **{**kwargs, "stream": True})
            with response:
                body = response.raw.read(MAX_ANSWER_BYTES, decode_content=True) or b""
        except Exception as error:
            self.cause = _cause_of(error)
            raise
        self.cause = self._fault_of(response, body)
        return response

    def _fault_of(self, response: requests.Response, body: bytes) -> str:
        status = response.status_code
        media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not 200 <= status < 300:
            return f"it answered {status}"
        if media == "text/html":
            return "it answered with a page of HTML"
        if media != PROTOBUF:
            return ""
        try:
            return "it rejected a part of them" if self._rejected(body) > 0 else ""
        except DecodeError:
            return "its answer is no protobuf"


def _cause_of(error: Exception) -> str:
    if "NameResolutionError" in repr(error):
        return "its host name does not resolve"
    return next((text for kind, text in _CAUSES if isinstance(error, kind)), type(error).__name__)
