"""Sessions of the console: a browser that logged in with an API key, and the cookie's token that says so.

The database knows a token by its SHA-256, and keeps the API key sealed under a key derived from the token: who reads
the database alone can neither take over a session nor read a key. A session ends with its key, or after twelve hours.

See docs/reference/console.md#sessions.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from control.edges.sql.console import session_rows
from control.edges.sql.store import Store, WriteTx, now_ms
from control.records.console import KeyOfSession, SessionRecord
from control.records.ids import new_nonce
from control.records.policy import PresentedKey
from policy.credentials import digest_of
from policy.sealing import KEY_BYTES, seal, unseal

VALID_MS = 12 * 3_600_000
MAX_PER_KEY = 100
"""The newest sessions of a key stay."""
_TOKEN_BYTES = 32
_TOKEN = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """One active session, and the key that acts in it."""

    record: SessionRecord
    key: KeyOfSession
    sealing_key: bytes = field(repr=False)

    @property
    def caller(self) -> PresentedKey:
        return self.key.presented

    def api_key(self) -> str:
        """The API key in plaintext."""
        return unseal((self.sealing_key,), self.record.digest, self.record.sealed_key)


def is_token(text: str) -> bool:
    """Return whether a text has the form of a session's token."""
    return _TOKEN.fullmatch(text) is not None


async def begin_session(store: Store, api_key: str, replaced: str | None) -> str:
    """The token of a new session of this key. `replaced`: the token of a session that ends with it."""
    token = secrets.token_hex(_TOKEN_BYTES)
    digest = _digest(token)
    key_digest = digest_of(api_key)
    sealed = seal((_sealing_key(token),), digest, api_key, new_nonce())

    async def work(tx: WriteTx) -> None:
        if replaced is not None:
            await session_rows.delete_session(tx, _digest(replaced))
        record = SessionRecord(digest, key_digest, sealed, tx.now_ms, tx.now_ms + VALID_MS)
        await session_rows.insert_session(tx, record)
        await session_rows.keep_newest(tx, key_digest, MAX_PER_KEY)

    await store.transact(work)
    return token


async def find_session(store: Store, token: str) -> ConsoleSession | None:
    """The session, if it is active and its key exists. Any text may be asked for."""
    if not is_token(token):
        return None
    async with store.read() as conn:
        row = await session_rows.find_active(conn, _digest(token), now_ms())
    return None if row is None else ConsoleSession(*row, _sealing_key(token))


async def end_session(store: Store, token: str) -> None:
    """Log out. Nothing happens if there is no such session."""

    async def work(tx: WriteTx) -> None:
        await session_rows.delete_session(tx, _digest(token))

    if is_token(token):
        await store.transact(work)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _sealing_key(token: str) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"tollgate console session").derive(token.encode())
