"""`/console/login` and `/console/callback`: people log in at the identity provider, by OpenID Connect's code flow.

A browser comes back from another site, so it does not send the `SameSite=Strict` cookie of a session. The login that it
began is in a `SameSite=Lax` cookie of the callback's path alone; the page that it is led to asks with the strict one.

See docs/reference/console.md#people.
"""

import logging
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from control.api.console.console_sessions import set_session_cookie
from control.api.console.pages import PAGES, notice_page
from control.api.protocol.authentication import cookie_values, session_token
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.origins import origin_of
from control.errors import DatabaseUnavailableError, RateLimitedError
from control.records.audit import Person
from control.records.console import LoginAttempt, LoginProviderError, Membership
from control.resources.console import console_sessions
from control.resources.console.console_sessions import token_digest
from control.resources.console.login.login_attempts import VALID_MS, new_attempt, own_path
from control.resources.console.login.provider import LoginProvider, LoginRefusedError
from policy.identity.login_claims import is_left_out, names_issuer, role_values, verified_name
from policy.identity.login_settings import LoginSettings

COOKIE = "tollgate_console_login"
CALLBACK = "/console/callback"
_MAX_TEXT_CHARS = 300
_MAX_VALUES = 20
_AGAIN = {"Log in again": "/console"}
_OVER = (
    "This login was not begun in this browser, is more than ten minutes old, or has ended already. Begin it again here."
)
_OWN_SITES = ("same-origin", "none")
log = logging.getLogger(__name__)


async def _start(request: web.Request) -> web.StreamResponse:
    """Lead the browser to the provider. Another site cannot begin a login: it leads to the console's login page."""
    dependencies = request.app[DEPENDENCIES]
    login = dependencies.login
    if login is None or request.headers.get("Sec-Fetch-Site", "none") not in _OWN_SITES:
        return _redirect("/console")
    try:
        await dependencies.throttle.check_login(request.remote or "")
        token = session_token(request)
        attempt = new_attempt(
            origin_of(request) + CALLBACK,
            own_path(request.query.get("return_to", ""), lambda name: name in PAGES),
            None if token is None else token_digest(token),
        )
        answer = _redirect(await login.authorization_url(attempt))
    except LoginProviderError as error:
        return _unavailable(error)
    except RateLimitedError as error:
        return _too_many(error)
    _set_cookie(request, answer, login.attempts.seal(attempt), VALID_MS // 1000)
    return answer


async def _callback(request: web.Request) -> web.StreamResponse:
    """End the login that this browser began. Whatever comes of it, it cannot end again."""
    login = request.app[DEPENDENCIES].login
    if login is None:
        return _redirect("/console")
    answer = await _answer(request, login)
    _set_cookie(request, answer, "", 0)
    return answer


async def _answer(request: web.Request, login: LoginProvider) -> web.StreamResponse:
    dependencies = request.app[DEPENDENCIES]
    try:
        await dependencies.throttle.check_login(request.remote or "")
        attempt = _login_attempt(request, login)
        if attempt is None or not await dependencies.throttle.is_first_use(attempt.state):
            return notice_page(400, "The login is over", [_OVER], _AGAIN)
        code = await _code(request, login)
        claims = await login.claims(attempt, code)
        return await _logged_in(request, login, attempt, claims)
    except RateLimitedError as error:
        return _too_many(error)
    except LoginRefusedError as error:
        return notice_page(403, "Not logged in", [str(error)], _AGAIN)
    except LoginProviderError as error:
        return _unavailable(error)
    except DatabaseUnavailableError:
        text = "The database cannot be reached right now. Try again in a moment."
        return notice_page(503, "Not logged in", [text], _AGAIN)


def _login_attempt(request: web.Request, login: LoginProvider) -> LoginAttempt | None:
    """The login that this browser began. None if it sends several: another page of this host must not choose it."""
    texts = cookie_values(request, COOKIE)
    states = request.query.getall("state", [])
    if len(texts) != 1 or len(states) != 1:
        return None
    return login.attempts.open(texts.pop(), states[0])


async def _code(request: web.Request, login: LoginProvider) -> str:
    """The code of an answer to this login. LoginRefusedError if the provider says no, or another one answered."""
    names = request.query.getall("iss", [])
    has_name = bool(names) or (await login.endpoints()).names_itself
    if has_name and not (len(names) == 1 and names_issuer(names[0], login.settings.issuer)):
        raise LoginRefusedError("The answer is from another identity provider than the one that was asked.")
    if "error" in request.query:
        text = f"{request.query['error']}: {request.query.get('error_description', '')}"[:_MAX_TEXT_CHARS]
        raise LoginRefusedError(f"The identity provider answered {text.removesuffix(': ')}")
    codes = request.query.getall("code", [])
    if len(codes) != 1 or not codes[0]:
        raise LoginRefusedError("The identity provider's answer has no code.")
    return codes[0]


async def _logged_in(
    request: web.Request, login: LoginProvider, attempt: LoginAttempt, claims: Mapping[str, Any]
) -> web.StreamResponse:
    settings = login.settings
    person = Person(settings.issuer, claims["sub"], verified_name(claims))
    values = role_values(claims, settings.role_claim)
    counting = tuple(dict.fromkeys(pair.value for pair in settings.pairs_of(values or ())))
    store = request.app[DEPENDENCIES].store
    token = None
    if counting:
        membership = Membership(settings.role_claim, counting)
        token = await console_sessions.begin_person_session(store, settings, person, membership, attempt.replaced)
    if token is None:
        leave = await login.logout_url(f"{origin_of(request)}/console")
        links = _AGAIN if leave is None else {**_AGAIN, "Log out at the identity provider": leave}
        return notice_page(403, "No role for you yet", _missing_role(settings, person, claims, values, counting), links)
    log.info("%s logged in to the console through the identity provider.", person.prefix)
    answer = _redirect(attempt.return_to)
    set_session_cookie(request, answer, token, console_sessions.VALID_MS // 1000)
    return answer


def _missing_role(
    settings: LoginSettings,
    person: Person,
    claims: Mapping[str, Any],
    values: tuple[str, ...] | None,
    counting: tuple[str, ...],
) -> list[str]:
    """Say what is missing to whoever was identified and may do nothing, for the operator to mend."""
    claim = settings.role_claim
    who = f"You are {person.email or person.subject} there, and have no role here."
    if counting:
        remedy = (
            "TOLLGATE_OIDC_ROLES gives you roles only in workspaces that do not exist. Ask the operator to mend it."
        )
        return [who, remedy]
    if values is None and is_left_out(claims, claim):
        many = f"The identity provider left out the claim {claim}, because you are in too many groups."
        return [who, many, "Ask for roles of the application instead, or for the groups that are assigned to it alone."]
    if values is None and claim == "email":
        return [who, "The identity provider does not say that it has verified your address (email_verified)."]
    if values is None:
        return [who, f"Your ID token has no claim {claim}. Ask the operator to have the identity provider add it."]
    text = ", ".join(values[:_MAX_VALUES]) + (" and others" if len(values) > _MAX_VALUES else "")
    has = f"Your claim {claim} has: {text}." if values else f"Your claim {claim} is empty."
    return [who, has, "None of it is in TOLLGATE_OIDC_ROLES. Ask the operator to add it, or to give you such a role."]


def _redirect(address: str) -> web.Response:
    headers = {"Location": address, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return web.Response(status=303, headers=headers)


def _set_cookie(request: web.Request, answer: web.StreamResponse, text: str, max_age_s: int) -> None:
    is_https = origin_of(request).startswith("https:")
    answer.set_cookie(COOKIE, text, path=CALLBACK, httponly=True, samesite="Lax", secure=is_https, max_age=max_age_s)


def _unavailable(error: LoginProviderError) -> web.Response:
    log.warning(
        "The identity provider of the console cannot be used (%s); people cannot log in, keys still can. Check"
        " TOLLGATE_OIDC_ISSUER, TOLLGATE_OIDC_CLIENT_SECRET and the provider.",
        error,
    )
    text = "The identity provider cannot be used right now. Try again in a moment. API keys still log in."
    return notice_page(503, "Not logged in", [text], {"Log in with a key": "/console"})


def _too_many(error: RateLimitedError) -> web.Response:
    answer = notice_page(429, "Not logged in", ["Too many logins come from your address. Wait a moment."], _AGAIN)
    answer.headers["Retry-After"] = str(error.retry_after_s)
    return answer


ROUTES = [web.get("/console/login", _start), web.get(CALLBACK, _callback)]
