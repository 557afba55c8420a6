"""Login at the identity provider: how people come in, what they may choose, how it ends, and what attackers get.

See docs/reference/console.md#people.
"""

import base64
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from aiohttp import ClientSession, DummyCookieJar
from sqlalchemy import select, update

from control.edges.sql import tables
from policy.identity.login_settings import LoginSettings, role_pairs
from tests.control.api.console.browser import COOKIE, SESSION, Browser, logged_in
from tests.control.plane import Answer, ControlPlane, running_plane
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.issuer import rsa_key
from tests.login_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    ENTRA,
    GOOGLE,
    KEYCLOAK,
    Json,
    LoginProvider,
    Shape,
    running_provider,
)

LOGIN = "/console/login"
CALLBACK = "/console/callback"
LOGIN_COOKIE = "tollgate_console_login"
GROUPS = "/v1/gateway/groups"
PAIRS = "tollgate-operator=workspace acme:operator,tollgate-viewer=workspace acme:viewer,tollgate-admin=other:admin"


@dataclass
class Visit:
    """A browser of a person at the provider and the console: it keeps both cookies, and follows as a browser does."""

    plane: ControlPlane
    provider: LoginProvider
    browser: Browser = field(init=False)
    login_cookie: str = ""

    def __post_init__(self) -> None:
        self.browser = Browser(self.plane)

    async def begin(self, return_to: str | None = None, **headers: str) -> Answer:
        query = {} if return_to is None else {"return_to": return_to}
        answer = await self.browser.get(LOGIN, params=query, headers=headers)
        for name, value in _cookies(answer).items():
            assert name == LOGIN_COOKIE
            self.login_cookie = value
        return answer

    async def at_provider(self, start: Answer) -> dict[str, str]:
        """Log in at the provider; the query with which it leads back."""
        async with (
            ClientSession(cookie_jar=DummyCookieJar()) as client,
            client.get(start.headers["Location"], allow_redirects=False) as answer,
        ):
            address = urlsplit(answer.headers["Location"])
            assert address.path == CALLBACK
            return {name: values[0] for name, values in parse_qs(address.query).items()}

    async def come_back(self, query: Any, cookie: str | None = None) -> Answer:
        """The navigation from another site: it has the Lax cookie, not the Strict one."""
        text = self.login_cookie if cookie is None else cookie
        headers = {"Cookie": text and f"{LOGIN_COOKIE}={text}", "Origin": "", "Sec-Fetch-Site": "cross-site"}
        answer = await self.browser.get(CALLBACK, params=query, headers=headers)
        token = _cookies(answer).get(COOKIE)
        if token:
            self.browser.cookie = f"{COOKIE}={token}"
        return answer

    async def log_in(self, return_to: str | None = None) -> Answer:
        return await self.come_back(await self.at_provider(await self.begin(return_to)))

    async def session(self) -> Json:
        session: Json = (await self.browser.get(SESSION)).ok()
        return session


def _cookies(answer: Answer) -> dict[str, str]:
    pairs = (header.partition(";")[0].partition("=") for header in answer.headers.getall("Set-Cookie", ()))
    return {name: value.strip('"') for name, _, value in pairs}


@asynccontextmanager
async def visit(
    database_url: str, shape: Shape = KEYCLOAK, claim: str = "realm_access.roles", pairs: str = PAIRS, **more: Any
) -> AsyncIterator[Visit]:
    secret = more.pop("secret", CLIENT_SECRET)
    async with running_provider(shape) as provider:
        provider.has_secret = bool(secret)
        login = LoginSettings(provider.issuer, CLIENT_ID, claim, role_pairs(pairs), secret)
        async with running_plane(database_url, login=login, **more) as plane:
            await plane.another_workspace()
            yield Visit(plane, provider)


def refused(answer: Answer, status: int, *parts: str) -> None:
    """Check a page that says no: no session, text for people, and nothing of it is a script."""
    assert answer.status == status, (answer.status, answer.body)
    assert not _cookies(answer).get(COOKIE)
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    for part in parts:
        assert part in answer.body, answer.body


# --- how people come in -------------------------------------------------------------------------------------------


async def test_a_person_logs_in_and_acts_in_the_role_that_the_claim_gives(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        start = await one.begin("/console/spend?range=month")
        assert start.status == 303
        answer = await one.come_back(await one.at_provider(start))
        assert (answer.status, answer.headers["Location"]) == (303, "/console/spend?range=month")
        session = await one.session()
        assert session["person"] == f"ada@acme.example ({one.provider.issuer})"
        assert (session["role"], session["workspace"]["id"]) == ("operator", one.plane.workspace_id)
        assert (session["prefix"][:7], session["may_manage"], session["group"]) == ("person_", True, None)
        assert session["choices"] == [
            {"workspace": {"id": one.plane.workspace_id, "name": "workspace acme"}, "role": "operator"}
        ]
        body = {"metadata": {"external_entity_id": "g"}, "models": [{"slug": "acme/chat"}]}
        (await one.browser.ask("POST", GROUPS, body)).ok()
        (await one.browser.ask("POST", "/v1/gateway/webhooks", {"url": "https://x.example/"})).refused(403)
        trail = (await one.plane.get("/v1/audit_events")).ok()["items"]
        assert trail[0]["actor"] == f"ada@acme.example ({one.provider.issuer})"


async def test_the_authorization_request_has_pkce_state_and_nonce(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        first = parse_qs(urlsplit((await one.begin()).headers["Location"]).query)
        second = parse_qs(urlsplit((await one.begin()).headers["Location"]).query)
        assert first["redirect_uri"] == [f"{one.browser.origin}{CALLBACK}"]
        assert (first["scope"], first["code_challenge_method"]) == (["openid email profile"], ["S256"])
        for name in ("state", "nonce", "code_challenge"):
            assert len(first[name][0]) == 43
            assert first[name] != second[name]


async def test_the_cookie_of_a_login_is_lax_short_and_of_the_callback_alone(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        (header,) = (await one.begin()).headers.getall("Set-Cookie")
        attributes = sorted(header.split("; ")[1:])
        assert attributes == ["HttpOnly", "Max-Age=600", "Path=/console/callback", "SameSite=Lax"]
        behind_tls = await one.begin(**{"X-Forwarded-Proto": "https"})
        assert "Secure" in behind_tls.headers["Set-Cookie"]
        assert "redirect_uri=https%3A%2F%2F" in behind_tls.headers["Location"]
        answer = await one.log_in()
        strict = next(text for text in answer.headers.getall("Set-Cookie") if text.startswith(f"{COOKIE}="))
        assert sorted(strict.split("; ")[1:]) == ["HttpOnly", "Max-Age=43200", "Path=/", "SameSite=Strict"]


@pytest.mark.parametrize(
    ("shape", "claim", "value", "name"),
    [
        (KEYCLOAK, "realm_access.roles", "tollgate-operator", "ada@acme.example"),
        (ENTRA, "roles", "Tollgate.Admin", "f:7b0c:ada"),
        (ENTRA, "groups", "0760b6cf-170e-4a14-91b3-4b78e0739963", "f:7b0c:ada"),
        (GOOGLE, "hd", "acme.example", "ada@acme.example"),
        (GOOGLE, "email", "ada@acme.example", "ada@acme.example"),
    ],
)
async def test_shapes_of_providers(sqlite_url: str, shape: Shape, claim: str, value: str, name: str) -> None:
    async with visit(sqlite_url, shape, claim, f"{value}=workspace acme:viewer") as one:
        assert (await one.log_in()).status == 303
        session = await one.session()
        assert (session["role"], session["person"]) == ("viewer", f"{name} ({one.provider.issuer})")


@pytest.mark.parametrize(
    ("claim", "claims"),
    [
        ("https://acme.example/roles", {"https://acme.example/roles": "ops, all"}),
        (r"resource_access.tollgate\.web.roles", {"resource_access": {"tollgate.web": {"roles": ["ops, all"]}}}),
    ],
)
async def test_claim_names_with_dots_and_urls(sqlite_url: str, claim: str, claims: Json) -> None:
    async with visit(sqlite_url, claim=claim, pairs=r"ops\, all=workspace acme:billing") as one:
        one.provider.claims = claims
        await one.log_in()
        assert (await one.session())["role"] == "billing"


async def test_a_public_client_needs_no_secret(sqlite_url: str) -> None:
    async with visit(sqlite_url, secret="") as one:
        assert (await one.log_in()).status == 303
        assert "client_secret" not in one.provider.forms[0]


async def test_keys_of_the_provider_may_change_between_logins(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        await one.log_in()
        one.provider.key = rsa_key(number=1)
        one.provider.kid = "key-2"
        assert (await one.log_in()).status == 303


async def test_login_is_offered_only_if_it_is_set(sqlite_url: str, sqlite_plane: ControlPlane) -> None:
    assert (await sqlite_plane.get("/console/tables.json")).ok()["organisation_login"] is False
    for path in (LOGIN, CALLBACK):
        answer = await Browser(sqlite_plane).get(path)
        assert (answer.status, answer.headers["Location"]) == (303, "/console")


async def test_the_login_page_learns_that_it_is_offered(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        assert (await one.plane.get("/console/tables.json")).ok()["organisation_login"] is True


# --- several workspaces -------------------------------------------------------------------------------------------


async def test_a_person_of_several_workspaces_chooses_one_of_them_and_no_other(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        third = await one.plane.another_workspace("third", "third")
        one.provider.claims = {"realm_access": {"roles": ["tollgate-viewer", "tollgate-admin"]}}
        await one.log_in()
        session = await one.session()
        assert session["workspace"] is None
        choices = [(choice["workspace"]["name"], choice["role"]) for choice in session["choices"]]
        assert choices == [("other", "admin"), ("workspace acme", "viewer")]
        (await one.browser.get(GROUPS)).refused(401)
        acme = one.plane.workspace_id
        for id, role in ((third["workspace_id"], "viewer"), (acme, "admin"), ("ws_none", "viewer")):
            forged = {"workspace_id": id, "role": role}
            (await one.browser.ask("PUT", SESSION, forged)).refused(400, field="workspace_id")
        choice = {"workspace_id": acme, "role": "viewer"}
        elsewhere = {"Origin": "https://evil.example"}
        (await one.browser.ask("PUT", SESSION, choice, elsewhere)).refused(403, "FOREIGN_ORIGIN")
        assert (await one.browser.ask("PUT", SESSION, choice)).status == 204
        assert (await one.session())["workspace"]["id"] == acme
        (await one.browser.get(GROUPS)).ok()
        (await one.browser.ask("POST", GROUPS, {})).refused(403, "MISSING_ROLE")
        other = next(one for one in session["choices"] if one["role"] == "admin")["workspace"]["id"]
        assert (await one.browser.ask("PUT", SESSION, {"workspace_id": other, "role": "admin"})).status == 204
        assert (await one.session())["workspace"]["id"] == other


async def test_a_session_of_a_key_has_nothing_to_choose(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        browser = await logged_in(one.plane)
        assert (await browser.get(SESSION)).ok()["choices"] == []
        body = {"workspace_id": one.plane.workspace_id, "role": "admin"}
        (await browser.ask("PUT", SESSION, body)).refused(401)
        (await Browser(one.plane).ask("PUT", SESSION, body)).refused(401)


async def test_roles_that_neither_includes_are_both_offered_and_a_lesser_one_is_not(sqlite_url: str) -> None:
    pairs = "a=workspace acme:billing,b=workspace acme:operator,c=workspace acme:viewer"
    async with visit(sqlite_url, claim="groups", pairs=pairs) as one:
        one.provider.claims = {"groups": ["a", "b", "c"]}
        await one.log_in()
        assert [choice["role"] for choice in (await one.session())["choices"]] == ["billing", "operator"]


# --- ends ---------------------------------------------------------------------------------------------------------


async def test_logout_ends_the_session_and_names_the_providers_own(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        await one.log_in()
        (await one.browser.ask("DELETE", SESSION, headers={"Origin": "https://evil.example"})).refused(403)
        await one.session()
        answer = await one.browser.ask("DELETE", SESSION)
        address = urlsplit(answer.ok()["continue_at"])
        assert address.path == KEYCLOAK.places["end_session"]
        assert parse_qs(address.query) == {
            "client_id": [CLIENT_ID],
            "post_logout_redirect_uri": [f"{one.browser.origin}/console"],
        }
        (await one.browser.get(SESSION)).refused(401)


async def test_logout_where_the_provider_has_none(sqlite_url: str) -> None:
    async with visit(sqlite_url, GOOGLE, "hd", "acme.example=workspace acme:viewer") as one:
        await one.log_in()
        assert (await one.browser.ask("DELETE", SESSION)).status == 204
        (await one.browser.get(SESSION)).refused(401)


async def test_a_session_ends_with_its_pair_its_provider_or_its_claim(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        await one.log_in()
        issuer = one.provider.issuer
        cookie = one.browser.cookie
        for change, status in (
            ({}, 200),
            ({"pairs": role_pairs("tollgate-operator=workspace acme:viewer,x=other:viewer")}, 401),
            ({"pairs": role_pairs("x=workspace acme:operator")}, 401),
            ({"role_claim": "groups"}, 401),
            ({"issuer": issuer + "/"}, 401),
        ):
            login = replace(LoginSettings(issuer, CLIENT_ID, "realm_access.roles", role_pairs(PAIRS)), **change)
            async with running_plane(sqlite_url, prefix=f"p{time.time_ns()}", login=login) as later:
                assert (await Browser(later, cookie).get(GROUPS)).status == status, change
        async with running_plane(sqlite_url, prefix="none") as without:
            (await Browser(without, cookie).get(GROUPS)).refused(401)


async def test_a_session_ends_after_its_time(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        await one.log_in()
        async with one.plane.store.write() as tx:
            await tx.conn.execute(update(tables.console_sessions).values(expires_at_ms=tx.now_ms))
        (await one.browser.get(SESSION)).refused(401)
        (await one.browser.get(GROUPS)).refused(401)


async def test_the_database_holds_no_token_of_the_provider_or_of_the_session(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        await one.log_in()
        async with one.plane.store.read() as conn:
            (row,) = (await conn.execute(select(tables.console_sessions))).all()
        assert one.browser.cookie.partition("=")[2] not in repr(row)
        assert row.sealed_key == ""
        assert "eyJ" not in repr(row)


async def test_a_person_has_no_key_to_call_with(sqlite_url: str) -> None:
    async with visit(sqlite_url, proxy_url="http://127.0.0.1:9") as one:
        await one.log_in()
        call = {"method": "GET", "path": "/v1/models"}
        problem = (await one.browser.ask("POST", "/console/call", call)).refused(403, "NO_KEY")
        assert "name the key to call with" in problem["error"]
        with_key = {**call, "api_key": "tg_x.y"}
        (await one.browser.ask("POST", "/console/call", with_key)).refused(503, "PROXY_UNAVAILABLE")


async def test_a_usage_link_of_a_person_opens_until_its_time(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        await one.log_in()
        group = await one.plane.group("customer")
        link = await one.browser.ask("POST", f"{GROUPS}/{group['id']}/usage_links", {"expires_in_s": 60})
        path = urlsplit(link.ok()["url"]).path
        assert (await Browser(one.plane).get(path)).status == 200
        await one.plane.delete(f"{GROUPS}/{group['id']}")
        assert (await Browser(one.plane).get(path)).status == 404


# --- attacks ------------------------------------------------------------------------------------------------------


async def test_a_forged_or_foreign_state_logs_nobody_in(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        answer = await one.at_provider(await one.begin())
        code = answer["code"]
        for query in ({**answer, "state": "forged"}, {"code": code}, [("code", code), ("state", "a"), ("state", "b")]):
            refused(await one.come_back(query), 400, "not begun in this browser")
        for cookie in ("", "forged", one.login_cookie[:-2], f"{one.login_cookie}; {LOGIN_COOKIE}=other"):
            refused(await one.come_back(answer, cookie), 400)
        victim = Visit(one.plane, one.provider)
        await victim.begin()
        refused(await victim.come_back(answer), 400)  # login CSRF: the attacker's answer in the victim's browser
        assert one.provider.forms == []
        assert (await one.come_back(answer)).status == 303


async def test_an_answer_counts_once(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        answer = await one.at_provider(await one.begin())
        first = await one.come_back(answer)
        assert (first.status, _cookies(first)[LOGIN_COOKIE]) == (303, "")
        refused(await one.come_back(answer), 400, "has ended already")
        assert len(one.provider.forms) == 1


async def test_a_code_counts_once(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        answer = await one.at_provider(await one.begin())
        await one.come_back(answer)
        again = await one.at_provider(await one.begin())
        refused(await one.come_back({**again, "code": answer["code"]}), 403, "it was used, or is too old")


async def test_a_code_of_another_login_does_not_fit(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        stolen = (await one.at_provider(await one.begin()))["code"]
        thief = Visit(one.plane, one.provider)
        answer = await thief.at_provider(await thief.begin())
        refused(await thief.come_back({**answer, "code": stolen}), 403)  # PKCE: another verifier


async def test_a_late_answer_is_refused(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with visit(sqlite_url) as one:
        monkeypatch.setattr("control.resources.console.login.login_attempts.VALID_MS", -1)
        answer = await one.at_provider(await one.begin())
        refused(await one.come_back(answer), 400, "more than ten minutes old")


async def test_a_login_cannot_be_begun_by_another_site(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        for site in ("cross-site", "same-site"):
            answer = await one.begin(**{"Sec-Fetch-Site": site})
            assert (answer.status, answer.headers["Location"], _cookies(answer)) == (303, "/console", {})


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "/console/../v1",
        "/console//evil.example",
        "/console/login",
        "/console/callback?code=x",
        "/console/overview\r\nSet-Cookie: a=b",
        "javascript:alert(1)",
        "/console/embed/x",
        "/console/spend?" + "x" * 2000,
    ],
)
async def test_a_login_leads_to_pages_of_the_console_alone(sqlite_url: str, target: str) -> None:
    async with visit(sqlite_url) as one:
        answer = await one.log_in(target)
        assert (answer.status, answer.headers["Location"]) == (303, "/console/overview")


async def test_a_login_makes_a_new_session_and_ends_the_one_before(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        one.browser.cookie = f"{COOKIE}={'0' * 64}"  # session fixation: a token that somebody else has put there
        await one.log_in()
        first = one.browser.cookie
        assert "0" * 64 not in first
        await one.log_in()
        assert one.browser.cookie != first
        (await Browser(one.plane, first).get(SESSION)).refused(401)


def _other_client(claims: Json) -> Json:
    return {**claims, "aud": "another-client"}


def _without(name: str) -> Any:
    return lambda claims: {member: value for member, value in claims.items() if member != name}


@pytest.mark.parametrize(
    ("altered", "reason"),
    [
        (_other_client, "issued for another client"),
        (lambda claims: {**claims, "aud": [CLIENT_ID, "b"], "azp": "b"}, "issued to another client"),
        (lambda claims: {**_without("azp")(claims), "aud": [CLIENT_ID, "b"]}, "issued for another client"),
        (lambda claims: {**claims, "azp": "b"}, "issued to another client"),
        (lambda claims: {**claims, "iss": "https://evil.example"}, "another issuer"),
        (lambda claims: {**claims, "iss": claims["iss"] + "/"}, "another issuer"),
        (lambda claims: {**claims, "nonce": "another"}, "another login"),
        (_without("nonce"), "another login"),
        (_without("sub"), "its sub"),
        (_without("exp"), "its times"),
        (lambda claims: {**claims, "exp": 1}, "expired"),
        (lambda claims: {**claims, "iat": claims["iat"] + 3600}, "of the future"),
    ],
)
async def test_claims_that_are_not_of_this_login_are_refused(sqlite_url: str, altered: Any, reason: str) -> None:
    async with visit(sqlite_url) as one:
        one.provider.altered = altered
        refused(await one.log_in(), 403, reason)


def _with_hmac(claims: Json, kid: str, public_key: str) -> str:
    """Sign with the public key as if it were a shared secret."""
    parts = ({"alg": "HS256", "typ": "JWT", "kid": kid}, claims)
    text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_encoded(hmac.digest(public_key.encode(), text.encode(), 'sha256'))}"


def _unsigned(claims: Json, signature: str) -> str:
    header = {"alg": "none", "typ": "JWT"}
    return ".".join([*(_encoded(json.dumps(part).encode()) for part in (header, claims)), signature])


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_signatures_that_are_not_of_the_provider_are_refused(sqlite_url: str) -> None:
    stranger = rsa_key(number=1)
    async with visit(sqlite_url) as one:
        provider = one.provider
        public = jwt.algorithms.RSAAlgorithm.to_jwk(provider.key.public_key())
        for signed in (
            lambda claims: _unsigned(claims, ""),
            lambda claims: _unsigned(claims, "eA"),
            lambda claims: provider.sign(claims, stranger),
            lambda claims: provider.sign(claims, kid="unknown"),
            lambda claims: provider.sign(claims, kid="enc"),
            lambda claims: _with_hmac(claims, provider.kid, public),
            lambda claims: provider.sign(claims, typ="logout+jwt"),
            lambda _claims: "rubbish",
            lambda claims: provider.sign({**claims, "x": "x" * 70_000}),
        ):
            provider.signed = signed
            refused(await one.log_in(), 403, "token is not accepted")
        provider.signed = None
        assert (await one.log_in()).status == 303


async def test_an_answer_of_another_provider_is_refused(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        answer = await one.at_provider(await one.begin())
        assert answer["iss"] == one.provider.issuer
        refused(await one.come_back({**answer, "iss": "https://evil.example"}), 403, "another identity provider")
        answer = await one.at_provider(await one.begin())
        del answer["iss"]
        refused(await one.come_back(answer), 403, "another identity provider")
        assert one.provider.forms == []


async def test_what_the_provider_refuses_is_shown_as_text_to_the_browser_that_asked_alone(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        one.provider.refusal = {"error": "access_denied", "error_description": "<script>alert(1)</script>" + "x" * 999}
        answer = await one.at_provider(await one.begin())
        stranger = await Visit(one.plane, one.provider).come_back({**answer, "state": "x"}, "")
        refused(stranger, 400)
        assert "access_denied" not in stranger.body
        page = await one.come_back(answer)
        refused(page, 403, "access_denied: &lt;script&gt;")
        assert "<script>" not in page.body
        assert "x" * 300 not in page.body


async def test_a_person_without_a_role_is_told_what_is_missing(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        one.provider.claims = {"realm_access": {"roles": ["<b>dev</b>"]}}
        page = await one.log_in()
        refused(page, 403, "ada@acme.example", "Your claim realm_access.roles has: &lt;b&gt;dev", "TOLLGATE_OIDC_ROLES")
        assert KEYCLOAK.places["end_session"] in page.body
        one.provider.claims = {"realm_access": {}}
        refused(await one.log_in(), 403, "Your ID token has no claim realm_access.roles")
        one.provider.claims = {"realm_access": {"roles": [1, None, {"a": "tollgate-operator"}]}}
        refused(await one.log_in(), 403, "is empty")
        assert await _sessions(one.plane) == 0


async def _sessions(plane: ControlPlane) -> int:
    async with plane.store.read() as conn:
        return len((await conn.execute(select(tables.console_sessions))).all())


async def test_too_many_groups_are_explained(sqlite_url: str) -> None:
    async with visit(sqlite_url, ENTRA, "groups", "x=workspace acme:viewer") as one:
        sources = {"src1": {"endpoint": "https://graph.microsoft.com/v1.0/users/x/getMemberObjects"}}
        overage = {"_claim_names": {"groups": "src1"}, "_claim_sources": sources}
        one.provider.altered = lambda claims: {**_without("groups")(claims), **overage}
        refused(await one.log_in(), 403, "left out the claim groups", "roles of the application")


async def test_an_address_that_nobody_verified_gives_no_role_and_no_name(sqlite_url: str) -> None:
    async with visit(sqlite_url, GOOGLE, "email", "ada@acme.example=workspace acme:admin") as one:
        for unverified in ({"email_verified": False}, {"email_verified": "true"}):
            one.provider.claims = unverified
            refused(await one.log_in(), 403, "email_verified", "f:7b0c:ada")


async def test_a_workspace_that_does_not_exist_is_explained(sqlite_url: str) -> None:
    async with visit(sqlite_url, pairs="tollgate-operator=gone:operator") as one:
        refused(await one.log_in(), 403, "workspaces that do not exist")


async def test_a_workspace_may_be_named_by_its_id(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        id = one.plane.workspace_id
        pairs = role_pairs(f"tollgate-operator={id}:admin")
        login = LoginSettings(one.provider.issuer, CLIENT_ID, "realm_access.roles", pairs, CLIENT_SECRET)
        async with running_plane(sqlite_url, prefix="second", login=login) as plane:
            other = Visit(plane, one.provider)
            await other.log_in()
            assert (await other.session())["workspace"]["id"] == id


# --- outages ------------------------------------------------------------------------------------------------------


async def test_while_the_provider_is_away_keys_still_log_in(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    login = LoginSettings("http://127.0.0.1:1", CLIENT_ID, "groups", role_pairs(PAIRS), CLIENT_SECRET)
    async with running_plane(sqlite_url, login=login) as plane:
        answer = await Browser(plane).get(LOGIN)
        refused(answer, 503, "API keys still log in")
        await logged_in(plane)
        assert "TOLLGATE_OIDC_ISSUER" in caplog.text


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://login.microsoftonline.com/{tenantid}/v2.0"},
        {"jwks_uri": None},
        {"token_endpoint": "http://evil.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
    ],
)
async def test_a_document_that_does_not_hold_begins_no_login(sqlite_url: str, document: Json) -> None:
    async with visit(sqlite_url) as one:
        one.provider.document = document
        refused(await one.begin(), 503)


async def test_a_wrong_secret_is_the_operators_fault_and_not_shown(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with visit(sqlite_url, secret="wrong-secret") as one:
        answer = await one.at_provider(await one.begin())
        refused(await one.come_back(answer), 503)
        assert "invalid_client" in caplog.text
        for secret in ("wrong-secret", answer["code"], answer["state"], one.provider.forms[0]["code_verifier"]):
            assert secret not in caplog.text


async def test_a_login_leaves_no_secret_in_the_log(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with visit(sqlite_url) as one:
        answer = await one.at_provider(await one.begin())
        await one.come_back(answer)
        ours = "\n".join(record.getMessage() for record in caplog.records if not record.name.startswith("aiosqlite"))
        token = one.browser.cookie.partition("=")[2]
        for secret in (CLIENT_SECRET, answer["code"], answer["state"], token, one.login_cookie, "eyJ"):
            assert secret not in ours


async def test_logins_of_an_address_are_bounded(sqlite_url: str) -> None:
    async with visit(sqlite_url) as one:
        for _ in range(20):
            assert (await one.begin()).status == 303
        refused(await one.begin(), 429)
        answer = await one.come_back({"state": "x", "code": "y"}, "x")
        refused(answer, 429)
        assert int(answer.headers["Retry-After"]) >= 1


async def test_a_provider_behind_an_authority_of_ones_own(sqlite_url: str, tmp_path: Path) -> None:
    ca = ThrowawayCa(tmp_path)
    tls = ca.server_context("127.0.0.1")
    async with running_provider(tls=tls) as provider:
        login = LoginSettings(provider.issuer, CLIENT_ID, "realm_access.roles", role_pairs(PAIRS), CLIENT_SECRET)
        for number, (ca_file, status) in enumerate(((None, 503), (str(ca.ca_file), 303))):
            prefix = f"p{number}"
            async with running_plane(sqlite_url, prefix=prefix, login=login, egress_ca_file=ca_file) as plane:
                assert (await Browser(plane).get(LOGIN)).status == status


async def test_an_answer_without_end_or_elsewhere_is_refused(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with visit(sqlite_url) as one:
        one.provider.document = {"x": "x" * (1 << 20)}
        refused(await one.begin(), 503)
        one.provider.document = {"jwks_uri": f"{one.provider.origin}/elsewhere"}
        answer = await one.at_provider(await one.begin())
        refused(await one.come_back(answer), 503)
        assert "has more than 1048576 bytes" in caplog.text
        assert "it answered 302" in caplog.text
