"""Sessions of the console: a browser that logged in, with an API key or as a person, and the cookie's token that says
so.

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
from control.records.audit import Person
from control.records.console import KeyOfSession, Membership, SessionRecord
from control.records.ids import new_nonce
from control.records.policy import PresentedKey
from control.resources.console.login import people
from policy.credentials import digest_of
from policy.identity.login_settings import LoginSettings
from policy.sealing import KEY_BYTES, seal, unseal

VALID_MS = 12 * 3_600_000
MAX_PER_KEY = 100
"""The newest sessions of a key stay."""
_TOKEN_BYTES = 32
_TOKEN = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """One active session, and the key or the person that acts in it."""

    record: SessionRecord
    key: KeyOfSession
    sealing_key: bytes = field(repr=False)

    @property
    def caller(self) -> PresentedKey:
        return self.key.presented

    def api_key(self) -> str | None:
        """The API key in plaintext; None if a person logged in, who has none."""
        if self.record.person is not None:
            return None
        return unseal((self.sealing_key,), self.record.digest, self.record.sealed_key)


def is_token(text: str) -> bool:
    """Return whether a text has the form of a session's token."""
    return _TOKEN.fullmatch(text) is not None


async def begin_session(store: Store, api_key: str, replaced: str | None) -> str:
    """The token of a new session of this key. `replaced`: the token of a session that ends with it."""
    token = secrets.token_hex(_TOKEN_BYTES)
    digest = token_digest(token)
    sealed = seal((_sealing_key(token),), digest, api_key, new_nonce())

    async def work(tx: WriteTx) -> None:
        record = SessionRecord(digest, digest_of(api_key), sealed, tx.now_ms, tx.now_ms + VALID_MS)
        await _insert(tx, record, None if replaced is None else token_digest(replaced))

    await store.transact(work)
    return token


async def begin_person_session(
    store: Store, settings: LoginSettings, person: Person, membership: Membership, replaced: str | None
) -> str | None:
    """The token of a new session of a person; None if the settings give no workspace that exists.

    `replaced`: the digest of the token of a session that ends with it. A single workspace is chosen at once.
    """
    token = secrets.token_hex(_TOKEN_BYTES)
    digest = token_digest(token)

    async def work(tx: WriteTx) -> str | None:
        choices = await people.choices_of(tx.conn, settings, membership.values)
        if not choices:
            return None
        await _insert(tx, people.new_record(digest, person, membership, tx.now_ms, tx.now_ms + VALID_MS), replaced)
        if len(choices) == 1:
            await session_rows.choose_workspace(tx, digest, choices[0].workspace_id, choices[0].role)
        return token

    return await store.transact(work)


async def _insert(tx: WriteTx, record: SessionRecord, replaced_digest: str | None) -> None:
    if replaced_digest is not None:
        await session_rows.delete_session(tx, replaced_digest)
    await session_rows.insert_session(tx, record)
    await session_rows.keep_newest(tx, record.key_digest, MAX_PER_KEY)


async def find_session(store: Store, token: str, settings: LoginSettings | None) -> ConsoleSession | None:
    """The session, if it is active and its key exists, or its person may still act. Any text may be asked for.

    `settings`: of the login of people; None: there is none, and no such session.
    """
    if not is_token(token):
        return None
    digest = token_digest(token)
    async with store.read() as conn:
        row = await session_rows.find_active(conn, digest, now_ms())
        if row is None and settings is not None:
            record = await session_rows.find_of_person(conn, digest, now_ms())
            holder = None if record is None else await people.holder_of(conn, settings, record)
            row = None if record is None or holder is None else (record, holder)
    return None if row is None else ConsoleSession(*row, _sealing_key(token))


async def end_session(store: Store, token: str) -> None:
    """Log out. Nothing happens if there is no such session."""

    async def work(tx: WriteTx) -> None:
        await session_rows.delete_session(tx, token_digest(token))

    if is_token(token):
        await store.transact(work)


def token_digest(token: str) -> str:
    """The name of a session in the database, which opens nothing."""
    return hashlib.sha256(token.encode()).hexdigest()


def _sealing_key(token: str) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"tollgate console session").derive(token.encode())
