"""The Chat Completions dialect and its siblings: Completions, Embeddings and Responses, asked and read back.

Pure. The caller's bytes go upstream but for `model`, and for the usage we ask for where a stream would bring none.
"""

import re

import orjson

from policy.billing import MAX_REPORTED_TOKENS
from proxy.dialects.streams import StreamFormat, StreamReader
from proxy.dialects.upstream_request import HeaderFields, UntranslatableError
from proxy.dialects.usage import OpenAiMeter
from proxy.dialects.whole_answers import BodyReader
from proxy.json_text.json_edit import Json

CHAT_PATH = "/v1/chat/completions"
RESPONSES_PATH = "/v1/responses"
COMPLETIONS_PATH = "/v1/completions"
EMBEDDINGS_PATH = "/v1/embeddings"
PATHS = frozenset((CHAT_PATH, COMPLETIONS_PATH, EMBEDDINGS_PATH, RESPONSES_PATH))
_PATHS_WITH_STREAM_OPTIONS = frozenset((CHAT_PATH, COMPLETIONS_PATH))

CHUNKS = StreamFormat((b"[DONE]",), re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]"))
_RESPONSE_EVENTS = StreamFormat(
    (b"response.completed", b"response.incomplete", b"response.failed", b"[DONE]"),
    re.compile(
        rb"(?:\A|[\r\n])(?:event: ?response\.(?:completed|incomplete|failed)\b|data: ?\[DONE\]"
        rb'|data: ?\{\s*"type"\s*:\s*"response\.(?:completed|incomplete|failed)")'
    ),
    holder="response",
)


def request_headers(credential: str | None) -> HeaderFields:
    fields = {"content-type": "application/json"}
    if credential:
        fields["authorization"] = f"Bearer {credential}"
    return fields


def changed_members(path: str, parsed: Json, model: str | None) -> dict[str, bytes]:
    """The members that the target is sent otherwise. `model` None: it serves under the slug's own name."""
    changed: dict[str, bytes] = {}
    if adds_include_usage(path, parsed):
        changed["stream_options"] = orjson.dumps((parsed.get("stream_options") or {}) | {"include_usage": True})
    if model is not None:
        changed["model"] = orjson.dumps(model)
    return changed


def adds_include_usage(path: str, parsed: Json) -> bool:
    """Whether the usage of this stream is ours alone: it can be asked for, and the caller did not."""
    if path not in _PATHS_WITH_STREAM_OPTIONS or parsed.get("stream") is not True:
        return False
    options = parsed.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise UntranslatableError("stream_options", "must be an object")
    return not (options or {}).get("include_usage")


def stream_reader(path: str, parsed: Json, slug: str, most: int = MAX_REPORTED_TOKENS) -> StreamReader:
    if path == RESPONSES_PATH:
        return StreamReader(_RESPONSE_EVENTS, slug, OpenAiMeter(_RESPONSE_EVENTS.holder, most))
    return StreamReader(CHUNKS, slug, OpenAiMeter(most=most), drop_usage=adds_include_usage(path, parsed))


def body_reader(path: str, slug: str, most: int = MAX_REPORTED_TOKENS) -> BodyReader:
    return BodyReader(slug, OpenAiMeter(most=most, has_output=path != EMBEDDINGS_PATH))
