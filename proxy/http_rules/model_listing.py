"""The answers of `GET /v1/models` and `GET /v1/models/{slug}`, in the form of either dialect. Pure.

The header `anthropic-version` chooses the form of Messages. A slug has no release date: both forms give the Unix
epoch, as their vendors do for a model of unknown date.

See docs/reference/inference.md#listing-models.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from proxy.exchange import Answered, Incoming

_NO_DATE = "1970-01-01T00:00:00Z"


def list_models_answer(incoming: Incoming, slugs: Iterable[str]) -> Answered:
    """The answer that lists `slugs`, sorted, on one page."""
    ordered = sorted(slugs)
    if not _wants_messages(incoming):
        return _answered({"object": "list", "data": [_model(slug) for slug in ordered]})
    ends = {"first_id": ordered[0], "last_id": ordered[-1]} if ordered else {"first_id": None, "last_id": None}
    return _answered({"data": [_messages_model(slug) for slug in ordered], "has_more": False, **ends})


def one_model_answer(incoming: Incoming, slug: str) -> Answered:
    return _answered(_messages_model(slug) if _wants_messages(incoming) else _model(slug))


def _wants_messages(incoming: Incoming) -> bool:
    return incoming.header("anthropic-version") is not None


def _model(slug: str) -> dict[str, Any]:
    return {"id": slug, "object": "model", "created": 0, "owned_by": slug.partition("/")[0]}


def _messages_model(slug: str) -> dict[str, Any]:
    return {"type": "model", "id": slug, "display_name": slug, "created_at": _NO_DATE}


def _answered(body: dict[str, Any]) -> Answered:
    return Answered(200, (("content-type", "application/json"),), orjson.dumps(body))
