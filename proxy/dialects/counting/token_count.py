"""`POST /v1/messages/count_tokens`: asked where the target may have it, otherwise estimated from the request's text.

Pure. The estimate is the one that bills a call whose provider reports no usage.

See docs/reference/inference.md#counting-tokens.
"""

import orjson

from policy.endpoints import MESSAGES, PROVIDERS, Target
from proxy.dialects.counting.request_text import RequestTokens
from proxy.dialects.messages import passing as messages
from proxy.dialects.spoken_dialects import stated_dialects
from proxy.records.messages import Received

PATH = f"{messages.PATH}/count_tokens"
ESTIMATED = "estimated"
"""Marker in place of a dialect, for a target without this path."""


def is_asked(target: Target) -> bool:
    """Return whether a target may have this path. Servers that speak Chat Completions often have it too."""
    if target.dialects is not None:
        return MESSAGES in stated_dialects(target)
    provider = PROVIDERS.get(target.provider)
    return provider is None or provider.counts_tokens


def estimate(request: Received) -> bytes:
    """The answer's body."""
    return orjson.dumps({"input_tokens": RequestTokens(request).tokens})
