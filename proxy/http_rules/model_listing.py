"""The answers of `GET /v1/models` and `GET /v1/models/{slug}`, in the form of either dialect. Pure.

The header `anthropic-version` chooses the form of Messages. A slug has no release date: both forms give the Unix
epoch, as their vendors do for a model of unknown date.

See docs/reference/inference.md#listing-models.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

import orjson

from proxy.answers import Answered
from proxy.records.messages import Incoming
from proxy.refusals import MalformedRequestError

MAX_PAGE = 1000
"""Most slugs on one page of the Messages form, and how many without `limit`: a client may read only the first page."""
_LIMIT = re.compile("[0-9]{1,4}")
_NO_DATE = "1970-01-01T00:00:00Z"


def list_models_answer(incoming: Incoming, slugs: Iterable[str]) -> Answered:
    """The answer that lists `slugs`, sorted: all of them, or in the form of Messages the page that the query asks for.

    Raises `MalformedRequestError` for a query that is not valid.
    """
    ordered = sorted(slugs)
    if not _wants_messages(incoming):
        return _answered({"object": "list", "data": [_listed_model(slug) for slug in ordered]})
    page, has_more = _page(ordered, dict(parse_qsl(incoming.request_target.partition("?")[2], keep_blank_values=True)))
    ends = {"first_id": page[0], "last_id": page[-1]} if page else {"first_id": None, "last_id": None}
    return _answered({"data": [_messages_model(slug) for slug in page], "has_more": has_more, **ends})


def one_model_answer(incoming: Incoming, slug: str) -> Answered:
    return _answered(_messages_model(slug) if _wants_messages(incoming) else _listed_model(slug))


def _page(ordered: list[str], query: dict[str, str]) -> tuple[list[str], bool]:
    """The page, and whether more follows in its direction. A slug that is gone still marks its place in the order."""
    limit = _page_limit(query.get("limit") or str(MAX_PAGE))
    after = query.get("after_id")
    before = query.get("before_id")
    if after and before:
        raise MalformedRequestError("after_id and before_id exclude each other")
    if before:
        slugs = ordered[: bisect_left(ordered, before)]
        return slugs[-limit:], len(slugs) > limit
    slugs = ordered[bisect_right(ordered, after) :] if after else ordered
    return slugs[:limit], len(slugs) > limit


def _page_limit(text: str) -> int:
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= MAX_PAGE:
        raise MalformedRequestError(f"limit must be a number from 1 to {MAX_PAGE}")
    return int(text)


def _wants_messages(incoming: Incoming) -> bool:
    return incoming.header("anthropic-version") is not None


def _listed_model(slug: str) -> dict[str, Any]:
    return {"id": slug, "object": "model", "created": 0, "owned_by": slug.partition("/")[0]}


def _messages_model(slug: str) -> dict[str, Any]:
    return {"type": "model", "id": slug, "display_name": slug, "created_at": _NO_DATE, "lifecycle": "active"}


def _answered(body: dict[str, Any]) -> Answered:
    return Answered(200, (("content-type", "application/json"),), orjson.dumps(body))
