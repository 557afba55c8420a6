"""`Idempotency-Key`: a request that creates is carried out once, however often it is sent within 24 hours.

See docs/reference/management-api.md#idempotency.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from aiohttp import web

from control.api.protocol.encoding import Encoded
from control.api.protocol.errors import Detail, bad_request
from control.dependencies import Dependencies, Store
from control.errors import RequestRunningError
from control.long_work import CHARS_PER_ITEM, beside
from control.records.policy import PresentedKey
from control.resources.changes.idempotency import Answer, IdempotencyKey, KeyedRequest, answer_once, request_digest

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
MAX_CHARS = 255


@dataclass(frozen=True, slots=True)
class Content:
    """The body of a request, which is valid or empty, and its query, if the operation reads one."""

    text: bytes
    query: Sequence[tuple[str, str]]


def idempotency_key(request: web.Request, caller: PresentedKey) -> IdempotencyKey | None:
    """The key of a request that creates; None without the header. 400 for one that cannot be a key.

    Quotes are a part of it: whoever sends them, as drafts of the IETF have them, sends them with each repeat.
    """
    values = request.headers.getall(HEADER, [])
    if not values:
        return None
    value = values[0].strip(" \t")
    if len(values) > 1:
        raise _bad("sent more than once; send one key")
    if value in ("", '""'):
        raise _bad("empty; send a key, such as a random UUID, or leave the header out")
    if len(value) > MAX_CHARS:
        raise _bad(f"longer than {MAX_CHARS} characters; send a shorter key, such as a random UUID")
    if not (value.isascii() and value.isprintable()):
        raise _bad("holds a character that is not printable ASCII; send a key such as a random UUID")
    return IdempotencyKey(value, caller.workspace_id, caller.prefix, request.method, request.path)


def _bad(fault: str) -> Exception:
    return bad_request(f"{HEADER}: {fault}", Detail(HEADER, fault))


@asynccontextmanager
async def alone_with(key: IdempotencyKey | None, dependencies: Dependencies) -> AsyncIterator[None]:
    """Let one request with the key run at a time in this process: the others wait here, without a connection."""
    async with AsyncExitStack() as stack:
        if key is not None:
            try:
                async with asyncio.timeout(key.wait_ms / 1000):
                    await stack.enter_async_context(dependencies.key_turns.of(key.id))
            except TimeoutError:
                raise RequestRunningError from None
        yield


async def answered_once(
    key: IdempotencyKey | None,
    content: Content,
    parts: Dependencies,
    handle: Callable[[Dependencies], Awaitable[Encoded]],
) -> Encoded:
    """The answer of `handle`, or the one of an earlier request with the key; without a key, always the former.

    `handle` gets the parts with a store whose writes commit together with its answer.
    """
    if key is None:
        return await handle(parts)
    items = len(content.text) // CHARS_PER_ITEM
    digest = await beside(key.workspace_id, items, partial(request_digest, content.text, content.query))
    keyed = KeyedRequest(key, digest, parts.settings.secret_keys)

    async def first(store: Store) -> Answer:
        new = await handle(replace(parts, store=store))
        return Answer(new.headers, b"".join(new.pieces))

    answer, is_replayed = await answer_once(parts.store, keyed, first)
    mark = {REPLAYED: "true"} if is_replayed else {}
    return Encoded([answer.body], {**answer.headers, **mark})
