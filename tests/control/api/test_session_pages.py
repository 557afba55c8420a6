"""The pages below `/sessions/`: what a browser is shown and told, and what it is never given."""

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from control.api.session_pages.pages import _TYPES as ASSETS
from control.api.session_pages.pairing import TERMINALS
from control.errors import DatabaseUnavailableError
from control.resources.training import sessions
from policy.training.statuses import COMPLETED
from tests.control.plane import ControlPlane
from tests.control.training_jobs import running_job

FORM = "application/x-www-form-urlencoded"
Shown = tuple[int, str, Mapping[str, str]]


def origin(plane: ControlPlane) -> str:
    return str(plane.client.make_url("")).rstrip("/")


async def ask(plane: ControlPlane, method: str, path: str, **more: Any) -> Shown:
    async with plane.client.request(method, path, allow_redirects=False, **more) as answer:
        return answer.status, await answer.text(), answer.headers


async def enter(plane: ControlPlane, path: str, code: str, **headers: str) -> Shown:
    all_headers = {"Origin": origin(plane), "Content-Type": FORM} | headers
    return await ask(plane, "POST", path, data=urlencode({"code": code}), headers=all_headers)


async def session_of(plane: ControlPlane) -> tuple[str, str]:
    """The path of a session's page, and its code."""
    (session,) = await (await running_job(plane)).codes()
    return f"/sessions/{session['session_id']}", session["auth_code"]


async def test_the_page_asks_for_the_code_and_becomes_the_shell(sqlite_plane: ControlPlane) -> None:
    path, code = await session_of(sqlite_plane)
    status, text, _ = await ask(sqlite_plane, "GET", path)
    assert (status, text.count("<input"), "<script" in text) == (200, 1, False)
    status, text, headers = await enter(sqlite_plane, path, code)
    assert (status, headers["Location"]) == (303, path)
    assert code not in text
    status, text, _ = await ask(sqlite_plane, "GET", path)  # the client keeps the cookie
    assert (status, "<input" in text) == (200, False)
    assert "<script type=module src=/sessions/assets/terminal.mjs></script>" in text


async def test_the_cookie_is_for_this_session_over_http_alone(sqlite_plane: ControlPlane) -> None:
    path, code = await session_of(sqlite_plane)
    _, _, headers = await enter(sqlite_plane, path, code, **{"X-Forwarded-Proto": "https"})
    name, *attributes = headers["Set-Cookie"].split("; ")
    assert name.startswith("tollgate-session=")
    assert sorted(attributes) == ["HttpOnly", f"Path={path}", "SameSite=Strict", "Secure"]


async def test_a_wrong_code_is_told_and_sets_no_cookie(sqlite_plane: ControlPlane) -> None:
    path, code = await session_of(sqlite_plane)
    for _ in range(4):
        status, text, headers = await enter(sqlite_plane, path, "<b>wrong</b>")
        assert (status, "This is not the code." in text, "Set-Cookie" in headers) == (403, True, False)
        assert "<b>wrong" not in text
    status, text, _ = await enter(sqlite_plane, path, "wrong")
    assert (status, "no valid code any more" in text) == (403, True)
    assert (await enter(sqlite_plane, path, code))[0] == 403


async def test_a_page_without_a_session_says_so(sqlite_plane: ControlPlane) -> None:
    headers = {"Origin": origin(sqlite_plane), "Content-Type": FORM}
    for id in ("session_" + "0" * 32, "session_none", "%00", "a%0d%0ab", "..%2f..%2fetc"):
        for method, more in (("GET", {}), ("HEAD", {}), ("POST", {"headers": headers, "data": "code=1"})):
            status, text, _ = await ask(sqlite_plane, method, f"/sessions/{id}", **more)
            assert (status, "This session is over" in text) == (404, method != "HEAD")


async def test_a_page_whose_job_has_ended_says_so(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane)
    (session,) = await job.codes()
    path = f"/sessions/{session['session_id']}"
    assert (await enter(sqlite_plane, path, session["auth_code"]))[0] == 303
    await job.becomes(status=COMPLETED)
    status, text, _ = await ask(sqlite_plane, "GET", path)
    assert (status, "This session is over" in text, "<script" in text) == (404, True, False)


async def test_every_page_is_locked_down(sqlite_plane: ControlPlane) -> None:
    path, code = await session_of(sqlite_plane)
    answers = [
        await ask(sqlite_plane, "GET", path),
        await enter(sqlite_plane, path, "wrong"),
        await enter(sqlite_plane, path, code),
        await ask(sqlite_plane, "GET", path),
        await ask(sqlite_plane, "GET", "/sessions/none"),
    ]
    assert [status for status, _, _ in answers] == [200, 403, 303, 200, 404]
    for _, text, headers in answers:
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "http" not in text  # nothing of another host, and no inline script
        assert text.count("<script") == text.count("<script type=module src=/sessions/")
        assert " on" not in text.replace(" once", "").replace(" one", "").replace(" only", "")


async def test_a_code_from_another_hosts_page_is_refused(sqlite_plane: ControlPlane) -> None:
    path, code = await session_of(sqlite_plane)
    for foreign_origin in ("https://evil.example", "null", "", "http://127.0.0.1:1"):
        status, _, headers = await enter(sqlite_plane, path, code, Origin=foreign_origin)
        assert (status, "Set-Cookie" in headers) == (403, False)
    assert (await enter(sqlite_plane, path, code))[0] == 303  # it was not spent


async def test_rubbish_is_a_refusal(sqlite_plane: ControlPlane) -> None:
    path, _ = await session_of(sqlite_plane)
    for body, type, status in (
        (b"code=" + b"0" * 5000, FORM, 413),
        (b'{"code": "0000-0000"}', "application/json", 415),
        (b"code=\xff", FORM, 400),
        (b"a=1&b=2&c=3&d=4&e=5", FORM, 400),
        (b"", FORM, 403),
    ):
        headers = {"Origin": origin(sqlite_plane), "Content-Type": type}
        assert (await ask(sqlite_plane, "POST", path, data=body, headers=headers))[0] == status


async def test_an_outage_of_the_database_is_told_as_one(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, code = await session_of(sqlite_plane)

    async def away(*_: object) -> None:
        raise DatabaseUnavailableError

    monkeypatch.setattr(sessions, "find_session", away)
    for status, text, _ in (await ask(sqlite_plane, "GET", path), await enter(sqlite_plane, path, code)):
        assert (status, "cannot reach its database" in text) == (503, True)


async def test_assets_are_served_with_their_types_and_nothing_else_is(sqlite_plane: ControlPlane) -> None:
    for name, type in ASSETS.items():
        status, text, headers = await ask(sqlite_plane, "GET", f"/sessions/assets/{name}")
        assert (status, headers["Content-Type"]) == (200, f"{type}; charset=utf-8")
        assert len(text) > 100
        again = {"If-None-Match": headers["ETag"]}
        assert (await ask(sqlite_plane, "GET", f"/sessions/assets/{name}", headers=again))[0] == 304
    for name in ("../pages.py", "..%2fpages.py", "__init__.py", "", "%2fetc%2fpasswd"):
        assert (await ask(sqlite_plane, "GET", f"/sessions/assets/{name}"))[0] == 404


async def test_no_log_line_has_a_code_a_cookie_or_an_id(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path, code = await session_of(sqlite_plane)
    await enter(sqlite_plane, path, "guessed-it")
    _, _, headers = await enter(sqlite_plane, path, code)
    await ask(sqlite_plane, "GET", path)
    cookie = headers["Set-Cookie"].partition("=")[2].partition(";")[0]
    logged = caplog.text + repr([record.__dict__ for record in caplog.records])
    assert "/sessions/{session_id}" in logged
    for secret in (code, "guessed-it", cookie, path):
        assert secret not in logged
    assert sqlite_plane.client.app is not None
    assert code not in repr(sqlite_plane.client.app[TERMINALS].__dict__)
