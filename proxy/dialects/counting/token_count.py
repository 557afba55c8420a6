"""`POST /v1/messages/count_tokens`: asked where the target may have it, otherwise estimated from the request's text.

Pure. The estimate is the one that bills a call whose provider reports no usage.

See docs/reference/inference.md#counting-tokens.
"""

import orjson

from policy.endpoints import Target
from proxy.dialects.chat_completions import passing as chat_completions
from proxy.dialects.counting.request_text import RequestTokens
from proxy.dialects.messages import passing as messages
from proxy.dialects.upstream_request import UpstreamRequest
from proxy.error_bodies import LACKS_PATH, has_nested_error
from proxy.exchange import Received
from proxy.json_text.json_edit import edit_members

PATH = f"{messages.PATH}/count_tokens"
_WITHOUT_PATH = frozenset(("VENDOR_B", "VENDOR_C"))


def is_asked(target: Target) -> bool:
    """Whether a target may have this path. Servers that speak Chat Completions often have it too."""
    return target.provider not in _WITHOUT_PATH


def build_request(request: Received, target: Target, credential: str | None) -> UpstreamRequest:
    is_vendor = target.provider == "VENDOR_A"
    headers = messages.request_headers(credential if is_vendor else None, request.head.incoming.headers)
    if not is_vendor:
        headers |= chat_completions.request_headers(credential)
    changes = {} if target.target_model is None else {"model": orjson.dumps(target.target_model)}
    return UpstreamRequest(PATH, headers, edit_members(request.body, request.json, changes, request.outline))


def estimate(request: Received) -> bytes:
    """The answer's body."""
    return orjson.dumps({"input_tokens": RequestTokens(request).tokens})


def says_no_such_path(status: int, error: bytes) -> bool:
    """Whether this answer means that the server lacks the path, and not that it lacks the model."""
    return status in LACKS_PATH and not has_nested_error(error)
