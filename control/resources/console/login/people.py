"""Sessions of people, who log in at the identity provider and have no key: what they may choose, and what ends them.

A session keeps the values of the role claim that counted at the login. What they mean is read from the settings at each
request: a pair that is gone, and another provider or claim, end the session or the choice.

See docs/reference/console.md#people.
"""

import hashlib
import json
from collections.abc import Sequence

from control.edges.sql.console import session_rows
from control.edges.sql.store import Connection, Store, WriteTx, now_ms
from control.edges.sql.workspace_rows import get_workspace, workspaces_called
from control.errors import InvalidFieldError
from control.records.audit import Person
from control.records.console import KeyOfSession, Membership, SessionRecord, WorkspaceChoice
from control.records.policy import PresentedKey
from policy.credentials import KeyKind
from policy.identity.login_settings import LoginSettings
from policy.keys.permissions import permissions_of
from policy.keys.roles import Role

MANAGER = KeyKind.WORKSPACE_MANAGE_ALL
"""The kind of key that people act like, within their roles."""


async def choices_of(conn: Connection, settings: LoginSettings, values: Sequence[str]) -> list[WorkspaceChoice]:
    """The workspaces and roles of these values of the claim, by name. A role within another one is no choice."""
    pairs = list(settings.pairs_of(values))
    workspaces = await workspaces_called(conn, {pair.workspace for pair in pairs})
    choices = [
        WorkspaceChoice(one.id, one.name, role.value)
        for one in workspaces
        for role in _widest({pair.role for pair in pairs if pair.is_of(one.id, one.name)})
    ]
    return sorted(choices, key=lambda choice: (choice.workspace_name, choice.role))


def _widest(roles: set[Role]) -> list[Role]:
    may = {role: permissions_of(MANAGER, role) for role in roles}
    return [role for role in Role if role in roles and not any(may[role] < may[other] for other in roles)]


def new_record(digest: str, person: Person, membership: Membership, at_ms: int, until_ms: int) -> SessionRecord:
    """The session of a person who has chosen nothing yet."""
    fields = [person.issuer, person.subject, person.email, membership.claim, membership.values]
    return SessionRecord(digest, digest_of_person(person), "", at_ms, until_ms, json.dumps(fields))


def digest_of_person(person: Person) -> str:
    """The text that stands where other sessions have the digest of their key. No key has a NUL, so none equals it."""
    return hashlib.sha256(f"{person.issuer}\0{person.subject}".encode("utf-8", "surrogatepass")).hexdigest()


def _person_in(record: SessionRecord, settings: LoginSettings) -> tuple[Person, tuple[str, ...]] | None:
    """The person, and the values of the claim; None if the settings name another provider or another claim by now."""
    issuer, subject, email, claim, values = json.loads(record.person or "")
    if (issuer, claim) != (settings.issuer, settings.role_claim):
        return None
    return Person(issuer, subject, email), tuple(values)


async def holder_of(conn: Connection, settings: LoginSettings, record: SessionRecord) -> KeyOfSession | None:
    """Whoever acts in the session; None until a workspace is chosen, or if the settings have no such pair any more."""
    person = _person_in(record, settings)
    if person is None or record.workspace_id is None or record.role is None:
        return None
    workspace = await get_workspace(conn, record.workspace_id)
    role = Role(record.role)
    pairs = settings.pairs_of(person[1])
    if not any(pair.role is role and pair.is_of(workspace.id, workspace.name) for pair in pairs):
        return None
    presented = PresentedKey(
        person[0].prefix, MANAGER, workspace.id, workspace.onboarded, workspace.name, role, person[0]
    )
    return KeyOfSession(presented, None, None)


async def read_choices(
    store: Store, settings: LoginSettings, digest: str
) -> tuple[Person, list[WorkspaceChoice]] | None:
    """The person of a session and the choices; None if there is no such session, or it has no choice any more."""
    async with store.read() as conn:
        record = await session_rows.find_of_person(conn, digest, now_ms())
        person = None if record is None else _person_in(record, settings)
        choices = [] if person is None else await choices_of(conn, settings, person[1])
    return (person[0], choices) if person is not None and choices else None


async def choose(store: Store, digest: str, choices: Sequence[WorkspaceChoice], workspace_id: str, role: str) -> None:
    """Act in this workspace from now on. InvalidFieldError unless it is one of the choices."""
    if not any((choice.workspace_id, choice.role) == (workspace_id, role) for choice in choices):
        raise InvalidFieldError("workspace_id", "must be, with the role, one of the choices of this login")

    async def work(tx: WriteTx) -> None:
        await session_rows.choose_workspace(tx, digest, workspace_id, role)

    await store.transact(work)
