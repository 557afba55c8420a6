"""Requests with an `Idempotency-Key`: the answer of the first is stored together with what it created, for 24 hours.

A repeat gets that answer. It is sealed twice: under a key that only the header's value gives, of which the database has
a digest, and under TOLLGATE_SECRET_KEY, so that a value that can be guessed is no help to whoever has the database.

See docs/reference/management-api.md#idempotency and decision 0094.
"""

import base64
import hashlib
import json
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import orjson
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from control.edges.sql.idempotency import rows
from control.edges.sql.idempotency.one_transaction import OneTransaction
from control.edges.sql.store import Store, WriteTx, now_ms
from control.errors import IdempotencyConflictError, RequestRunningError, SecretUnreadableError
from control.long_work import CHARS_PER_ITEM, beside
from control.records.ids import new_nonce
from policy.sealing import KEY_BYTES, SealedWithUnknownKeyError, seal, unseal

KEPT_MS = 86_400_000
WAIT_S = 10.0
"""The time that a repeat waits for the first request to end."""
_ID_PURPOSE = "tollgate idempotency key, its digest"
_ANSWER_PURPOSE = "tollgate idempotency key, its answer"


@dataclass(frozen=True, slots=True)
class Answer:
    """A success as it was sent."""

    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A header's value in its scope. `credential`: the public prefix of whoever sent it. `until_s`: monotonic."""

    value: str = field(repr=False)
    workspace_id: str
    credential: str
    method: str
    path: str
    until_s: float = field(default_factory=lambda: time.monotonic() + WAIT_S)
    """The end of the wait for another request with the key."""

    @property
    def id(self) -> str:
        """A digest: the only thing that is stored of the value."""
        return hashlib.sha256(self._text(_ID_PURPOSE)).hexdigest()

    @property
    def sealing_key(self) -> bytes:
        return HKDF(SHA256(), KEY_BYTES, None, self._text(_ANSWER_PURPOSE)).derive(self.value.encode())

    @property
    def wait_ms(self) -> int:
        return max(0, int((self.until_s - time.monotonic()) * 1000))

    def _text(self, purpose: str) -> bytes:
        scope = (self.workspace_id, self.credential, self.method, self.path)
        return json.dumps([purpose, *scope, self.value if purpose == _ID_PURPOSE else ""]).encode()


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with a key. `digest`: of what it asks for. `secret_keys`: those that control seals with."""

    key: IdempotencyKey
    digest: str
    secret_keys: Sequence[bytes] = field(repr=False)


def request_digest(text: bytes, query: Sequence[tuple[str, str]]) -> str:
    """A digest of a valid body, or none, and of a query. The same values in another order or spelling have the same."""
    body = orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS) if text else b""
    return hashlib.sha256(json.dumps(sorted(query)).encode() + b"\n" + body).hexdigest()


async def answer_once(
    store: Store, request: KeyedRequest, handle: Callable[[Store], Awaitable[Answer]]
) -> tuple[Answer, bool]:
    """The answer of `handle`, or the one that an earlier request with the key got, and whether it is that.

    `handle` gets a store whose writes commit together with its answer, or not at all. What it raises, and an answer
    without a write, are not kept. Raises `IdempotencyConflictError` if the earlier request asked for something else.
    """
    earlier = await _find(store, request)
    if earlier is None:
        try:
            return await _first(store, request, handle), False
        except _AnsweredError:
            earlier = await _find(store, request)
    if earlier is None:  # it expired in between
        raise RequestRunningError
    return earlier, True


async def reencrypt_answers(tx: WriteTx, keys: Sequence[bytes]) -> None:
    """Seal the answers again under `keys[0]`. One that no key opens stays until it expires: no repeat can have it."""

    def resealed(id: str, sealed: str) -> str | None:
        try:
            return seal(keys, id, unseal(keys, id, sealed), new_nonce())
        except SealedWithUnknownKeyError:
            return None

    await rows.reseal_answers(tx, resealed)


class _AnsweredError(Exception):
    """Another request with the key has committed its answer meanwhile."""


async def _first(store: Store, request: KeyedRequest, handle: Callable[[Store], Awaitable[Answer]]) -> Answer:
    async def begin(tx: WriteTx) -> None:
        key = request.key
        if not await rows.claim(tx, key.id, tx.now_ms + KEPT_MS, key.wait_ms):
            raise _AnsweredError

    async with OneTransaction(store, begin) as transaction:
        answer = await handle(transaction)
        if transaction.has_written:
            work = partial(_sealed, request, answer)
            sealed = await beside(request.key.workspace_id, len(answer.body) // CHARS_PER_ITEM, work)
            await transaction.transact(lambda tx: rows.fill(tx, request.key.id, sealed))
    return answer


async def _find(store: Store, request: KeyedRequest) -> Answer | None:
    async with store.read() as conn:
        sealed = await rows.find_answer(conn, request.key.id, now_ms())
    if sealed is None:
        return None
    work = partial(_opened, request, sealed)
    return await beside(request.key.workspace_id, len(sealed) // CHARS_PER_ITEM, work)


def _sealed(request: KeyedRequest, answer: Answer) -> str:
    # The digest is sealed, too: it would let others test guesses of a secret in the body.
    head = orjson.dumps([request.digest, dict(answer.headers)])
    text = base64.b64encode(zlib.compress(head + b"\n" + answer.body)).decode()
    inner = seal((request.key.sealing_key,), request.key.id, text, new_nonce())
    return seal(request.secret_keys, request.key.id, inner, new_nonce())


def _opened(request: KeyedRequest, sealed: str) -> Answer:
    try:
        inner = unseal(request.secret_keys, request.key.id, sealed)
        text = unseal((request.key.sealing_key,), request.key.id, inner)
    except SealedWithUnknownKeyError:
        raise SecretUnreadableError from None
    head, _, body = zlib.decompress(base64.b64decode(text)).partition(b"\n")
    digest, headers = orjson.loads(head)
    if digest != request.digest:
        raise IdempotencyConflictError
    return Answer(headers, body)
