"""The Chat Completions dialect and its siblings: Completions and Embeddings.

Pure. The caller's body goes upstream unchanged except for `model`, and for `stream_options` where a stream would
otherwise report no usage.
"""

import orjson

from policy.billing import MAX_REPORTED_TOKENS
from proxy.dialects.finish import ChunkRoles
from proxy.dialects.stream_readers import StreamFormat, StreamReader
from proxy.dialects.upstream_request import HeaderFields, bearer_headers
from proxy.dialects.usage.meters import OpenAiMeter
from proxy.errors import UntranslatableError
from proxy.json_text.json_edit import Json
from proxy.records.messages import Incoming, Received

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
EMBEDDINGS_PATH = "/v1/embeddings"
PATHS = frozenset((CHAT_PATH, COMPLETIONS_PATH, EMBEDDINGS_PATH))
_PATHS_WITH_STREAM_OPTIONS = frozenset((CHAT_PATH, COMPLETIONS_PATH))
STREAM_OPTIONS = "stream_options"
"""The member that requests a stream's usage."""
USAGE_NAMES = (b"stream_options", b"include_usage")
"""Names of that member in the refusals of servers that do not know it."""

CHUNKS = StreamFormat(ChunkRoles(), last=b"data: [DONE]\n\n")


def request_headers(credential: str | None, _provider: str, _caller: Incoming | None) -> HeaderFields:
    return bearer_headers(credential)


def changed_members(parsed: Json, model: str | None, *, asks_usage: bool) -> dict[str, bytes]:
    """The members to change for the target, as JSON text. `model` None: the target knows the model by its slug."""
    changed: dict[str, bytes] = {}
    if asks_usage:
        changed["stream_options"] = orjson.dumps((parsed.get("stream_options") or {}) | {"include_usage": True})
    if model is not None:
        changed["model"] = orjson.dumps(model)
    return changed


def adds_include_usage(path: str, parsed: Json) -> bool:
    """Return whether the gateway must request the stream's usage: the path supports it, the caller did not request it.

    Raises `UntranslatableError` for `stream_options` that are not an object.
    """
    if path not in _PATHS_WITH_STREAM_OPTIONS or parsed.get("stream") is not True:
        return False
    options = parsed.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise UntranslatableError("stream_options", "must be an object")
    return not (options or {}).get("include_usage")


def stream_reader(request: Received, most: int = MAX_REPORTED_TOKENS) -> StreamReader:
    drop_usage = adds_include_usage(request.facts.path, request.json)
    is_alone = request.json.get("n") in (None, 1) and not isinstance(request.json.get("prompt"), list)
    return StreamReader(CHUNKS, request.slug, OpenAiMeter(most), drop_usage=drop_usage, is_alone=is_alone)
