"""Attacks by whoever has a role that may do little, to do more. Who may call which operation: test_roles.py.

See docs/reference/roles.md#nobody-is-above-himself and docs/threat-model.md.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import func, select

from control.edges.sql.tables import api_keys
from policy.credentials import KeyKind, prefix_of
from policy.keys.permissions import permissions_of
from policy.keys.roles import Role
from tests.control.api.console.browser import SESSION, logged_in
from tests.control.plane import TOKEN, Answer, ControlPlane, Json

G = "/v1/gateway"
OWN = "/v1/api_keys"
MANAGE = KeyKind.WORKSPACE_MANAGE_ALL.value
KINDS = [(KeyKind.WORKSPACE_INVOKE, None), (KeyKind.WORKSPACE_EXPORT_METRICS, None)]
CHOICES = [*KINDS, *((KeyKind.WORKSPACE_MANAGE_ALL, role) for role in (None, *Role))]
"""Every key that somebody could ask for."""
MAKES: dict[Role, set[tuple[KeyKind, Role | None]]] = {
    Role.VIEWER: set(),
    Role.BILLING: set(),
    Role.OPERATOR: {
        *KINDS,
        (KeyKind.WORKSPACE_MANAGE_ALL, Role.VIEWER),
        (KeyKind.WORKSPACE_MANAGE_ALL, Role.OPERATOR),
    },
    Role.ADMIN: set(CHOICES),
}


@dataclass
class Staff:
    """A workspace with a key of each role."""

    plane: ControlPlane
    keys: dict[Role, str]

    async def call(self, role: Role, method: str, path: str, body: Any = None) -> Answer:
        return await self.plane.call(method, path, body, key=self.keys[role])


@pytest.fixture
async def staff(sqlite_plane: ControlPlane) -> Staff:
    return Staff(sqlite_plane, {role: await new_key(sqlite_plane, role) for role in Role})


async def new_key(plane: ControlPlane, role: Role, **more: Any) -> str:
    key: str = (await plane.post(OWN, {"type": MANAGE, "role": role.value}, **more)).ok()["api_key"]
    return key


def asked(kind: KeyKind, role: Role | None) -> Json:
    return {"type": kind.value} | ({} if role is None else {"role": role.value})


@pytest.mark.parametrize("maker", list(Role))
async def test_nobody_makes_a_key_above_himself(staff: Staff, maker: Role) -> None:
    for kind, role in CHOICES:
        answer = await staff.call(maker, "POST", OWN, asked(kind, role))
        if (kind, role) in MAKES[maker]:
            created = answer.ok()
            assert permissions_of(kind, role) <= permissions_of(KeyKind.WORKSPACE_MANAGE_ALL, maker)
            assert (created["type"], created["role"]) == (kind.value, role and role.value)
        else:
            answer.refused(403, "ROLE_TOO_HIGH" if maker is Role.OPERATOR else "MISSING_ROLE")
            assert "tg_" not in str(answer.body)


async def test_chain_of_keys_never_climbs(staff: Staff) -> None:
    key = staff.keys[Role.OPERATOR]
    for _ in range(3):
        key = await new_key(staff.plane, Role.OPERATOR, key=key)
    for role in (Role.ADMIN, Role.BILLING):
        refused = await staff.plane.post(OWN, asked(KeyKind.WORKSPACE_MANAGE_ALL, role), key=key)
        assert "ask an admin" in refused.refused(403, "ROLE_TOO_HIGH")["error"]
    (await staff.plane.post(OWN, {"type": MANAGE}, key=key)).refused(403, "ROLE_TOO_HIGH")


async def test_nobody_revokes_a_key_above_himself(staff: Staff) -> None:
    async def keys() -> int:
        async with staff.plane.store.read() as conn:
            return int((await conn.execute(select(func.count()).select_from(api_keys))).scalar_one())

    before = await keys()
    first = prefix_of(staff.plane.key)
    for prefix in (first, *(prefix_of(staff.keys[role]) for role in (Role.ADMIN, Role.BILLING))):
        (await staff.call(Role.OPERATOR, "DELETE", f"{OWN}/{prefix}")).refused(403, "ROLE_TOO_HIGH")
    for role in (Role.VIEWER, Role.BILLING):
        for target in Role:
            (await staff.call(role, "DELETE", f"{OWN}/{prefix_of(staff.keys[target])}")).refused(403, "MISSING_ROLE")
    assert await keys() == before
    (await staff.call(Role.OPERATOR, "DELETE", f"{OWN}/{prefix_of(staff.keys[Role.VIEWER])}")).ok()
    (await staff.call(Role.OPERATOR, "DELETE", f"{OWN}/tg_000000000000")).refused(404)
    (await staff.call(Role.ADMIN, "DELETE", f"{OWN}/{first}")).ok()
    assert await keys() == before - 2


async def test_role_of_another_workspaces_key_is_not_told(staff: Staff) -> None:
    other = await staff.plane.another_workspace()
    foreign = prefix_of(other["api_key"])
    for role in (Role.OPERATOR, Role.ADMIN):
        (await staff.call(role, "DELETE", f"{OWN}/{foreign}")).refused(404)
        (await staff.call(role, "GET", f"{OWN}/{foreign}")).refused(404)


async def test_no_operation_changes_a_role(staff: Staff) -> None:
    own = prefix_of(staff.keys[Role.VIEWER])
    for method in ("PATCH", "PUT"):
        (await staff.call(Role.VIEWER, method, f"{OWN}/{own}", {"role": "admin"})).refused(405)
    key = (await staff.call(Role.VIEWER, "GET", f"{OWN}/{own}")).ok()
    assert (key["type"], key["role"]) == (MANAGE, "viewer")


@pytest.mark.parametrize(
    "body", [{"type": "WORKSPACE_INVOKE", "role": "viewer"}, {"type": "FEDERATED", "role": "admin"}]
)
async def test_role_without_its_type_is_refused(sqlite_plane: ControlPlane, body: Json) -> None:
    (await sqlite_plane.post(OWN, body)).refused(400, "INVALID_REQUEST")


@pytest.mark.parametrize("role", ["root", "ADMIN", "", "viewer ", 1, ["admin"], {"admin": True}, True])
async def test_unknown_role_is_refused(sqlite_plane: ControlPlane, role: Any) -> None:
    (await sqlite_plane.post(OWN, {"type": MANAGE, "role": role})).refused(400, "INVALID_REQUEST", "role")


async def test_group_key_has_no_role(sqlite_plane: ControlPlane) -> None:
    group = await sqlite_plane.group("blue")
    path = f"{G}/groups/{group['id']}/api_keys"
    (await sqlite_plane.post(path, {"role": "admin"})).refused(400)
    minted = (await sqlite_plane.post(path, {})).ok()
    (await sqlite_plane.patch(f"{path}/{minted['prefix']}", {"role": "admin"})).refused(400)


async def test_lists_show_roles(staff: Staff) -> None:
    expected = {prefix_of(key): role.value for role, key in staff.keys.items()}
    for path in (OWN, f"{G}/api_keys"):
        items = (await staff.call(Role.VIEWER, "GET", path)).ok()["items"]
        roles = {item["prefix"]: item["role"] for item in items}
        assert {prefix: roles[prefix] for prefix in expected} == expected
        assert roles[prefix_of(staff.plane.key)] is None


async def test_trail_tells_the_role_of_a_new_key(staff: Staff) -> None:
    await new_key(staff.plane, Role.VIEWER, key=staff.keys[Role.OPERATOR])
    (event,) = (await staff.call(Role.VIEWER, "GET", "/v1/audit_events?limit=1")).ok()["items"]
    assert (event["actor"], event["after"]["role"]) == (prefix_of(staff.keys[Role.OPERATOR]), "viewer")


async def test_session_may_do_what_its_key_may(staff: Staff) -> None:
    group = await staff.plane.group("blue")
    browser = await logged_in(staff.plane, staff.keys[Role.VIEWER])
    session = (await browser.get(SESSION)).ok()
    assert (session["role"], session["may"]) == ("viewer", ["read"])
    links = f"{G}/groups/{group['id']}/usage_links"
    for method, path, body in (
        ("POST", links, {}),
        ("POST", OWN, {"type": MANAGE}),
        ("POST", f"{G}/groups/{group['id']}/api_keys", {}),
        ("POST", f"{G}/webhooks", {"url": "https://evil.example/hook"}),
        ("GET", "/v1/async/webhook_secret", None),
        (
            "POST",
            "/console/call",
            {"method": "POST", "path": "/models/m/production/predict", "api_key": staff.plane.key},
        ),
    ):
        (await browser.ask(method, path, body)).refused(403, "MISSING_ROLE")
    (await browser.get(f"{G}/groups")).ok()


async def test_operator_gets_no_secret_of_webhooks(staff: Staff) -> None:
    hook = (await staff.plane.post(f"{G}/webhooks", {"url": "https://billing.example.com/hook"})).ok()
    path = f"{G}/webhooks/{hook['id']}"
    (await staff.call(Role.OPERATOR, "PATCH", path, {"rotate_secret": True})).refused(403, "MISSING_ROLE")
    (await staff.call(Role.OPERATOR, "PATCH", path, {"url": "https://evil.example/"})).refused(403, "MISSING_ROLE")
    assert "whsec_" not in str((await staff.call(Role.OPERATOR, "POST", f"{path}/test")).ok())
    assert (await staff.call(Role.OPERATOR, "GET", path)).ok()["secret"] is None


async def test_credit_is_lost_only_by_whoever_books_credits(staff: Staff) -> None:
    group = await staff.plane.group("blue")
    path = f"{G}/groups/{group['id']}"
    paid_in = {"amount": "1", "currency": "EUR", "reference": "one"}
    (await staff.call(Role.OPERATOR, "POST", f"{path}/balance/credits", paid_in)).refused(403, "MISSING_ROLE")
    (await staff.call(Role.BILLING, "POST", f"{path}/balance/credits", paid_in)).ok()
    refused = (await staff.call(Role.OPERATOR, "DELETE", f"{path}?forfeit=true")).refused(403, "MISSING_ROLE")
    assert "billing or admin" in refused["error"]
    (await staff.call(Role.BILLING, "DELETE", f"{path}?forfeit=true")).refused(403, "MISSING_ROLE")
    (await staff.call(Role.OPERATOR, "DELETE", path)).refused(409)
    (await staff.call(Role.ADMIN, "DELETE", f"{path}?forfeit=true")).ok()


async def test_role_is_refused_while_an_older_proxy_would_ignore_it(sqlite_plane: ControlPlane) -> None:
    (await sqlite_plane.get("/internal/v1/snapshot", key=TOKEN)).ok()
    refused = (await sqlite_plane.post(OWN, {"type": MANAGE, "role": "viewer"})).refused(409)
    assert "roles of keys. Update all proxies" in refused["error"]
    (await sqlite_plane.post(OWN, {"type": MANAGE})).ok()


async def test_refusals_look_alike_whatever_is_named(staff: Staff) -> None:
    """A viewer learns by refusals of nothing that there is, here or in another workspace."""
    other = await staff.plane.another_workspace()
    own = (await staff.plane.post("/v1/models", {"name": "m"})).ok()["id"]
    foreign = (await staff.plane.post("/v1/models", {"name": "m"}, key=other["api_key"])).ok()["id"]
    answers = [await staff.call(Role.VIEWER, "DELETE", f"/v1/models/{id}") for id in (own, foreign, "mdl_none")]
    assert len({str(answer.refused(403, "MISSING_ROLE")) for answer in answers}) == 1


@pytest.mark.parametrize("role", list(Role))
async def test_no_role_opens_the_page_of_a_customer(staff: Staff, role: Role) -> None:
    browser = await logged_in(staff.plane, staff.keys[role])
    for method, path in (("GET", "data"), ("GET", "keys"), ("POST", "keys"), ("POST", "keys/tg_000000000000/rotate")):
        body = {} if method == "POST" else None
        (await browser.ask(method, f"/console/usage/{path}", body)).refused(403, "MISSING_SCOPE")
