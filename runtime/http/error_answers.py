"""Error answers of the HTTP server itself: their JSON and, where no application may answer, their bytes. Pure."""

import json
from http import HTTPStatus

FIELDS = {"Server": "tollgate", "X-Content-Type-Options": "nosniff"}
"""Header fields of every answer. aiohttp's `Server` would name its version and Python's."""
_CODES = {400: "INVALID_REQUEST", 408: "REQUEST_TIMEOUT", 503: "TOO_MANY_CONNECTIONS"}


def error_json(status: int, message: str, code_member: str) -> str:
    """Write an error as this API's JSON; `code_member` names its code."""
    return json.dumps({"error": message, "message": message, code_member: _CODES.get(status, "INTERNAL_ERROR")})


def error_answer(status: int, message: str, code_member: str) -> bytes:
    """Write a whole answer, after which the connection closes."""
    body = error_json(status, message, code_member)
    fields = "".join(f"{name}: {value}\r\n" for name, value in FIELDS.items())
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n{fields}"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
