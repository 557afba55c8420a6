"""The client packages of a release: they compile strictly, and programs that use them work against the product."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from deploy.release.clients import NODE_MODULES
from tests.clients.packages.built import PROGRAMS, Packages
from tests.journeys.conftest import Workspace, stage_of
from tests.journeys.product import Product
from tests.journeys.receivers import Customer
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually

pytestmark = [
    pytest.mark.skipif(not NODE_MODULES.exists(), reason="make toolchain"),
    pytest.mark.timeout(1200),
]
KEY = "tg_scripted.secret"
LANGUAGES = ("python", "typescript")
README_WORKSPACE = "readme-ts"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return Packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def compiled(packages: Packages) -> Packages:
    """The packages, and every TypeScript program: one that does not compile strictly fails all tests of them."""
    packages.generate_types()
    first = packages.first_program("typescript", "ts", f"{README_WORKSPACE}/assistant")
    problems = packages.compile_typescript(first, *(PROGRAMS / f"{name}.ts" for name in ("bare", "journey", "repeats")))
    assert problems == ""
    return packages


@pytest.fixture
def settings(workspace: Workspace, numbers: Iterator[int]) -> dict[str, str]:
    """The environment of a program that uses a workspace of its own."""
    return environment_of(workspace.product, f"clients-{next(numbers)}")


def environment_of(product: Product, name: str) -> dict[str, str]:
    created = product.command("workspace", "create", name, "--prefix", name)
    return {"TOLLGATE_URL": product.control, "TOLLGATE_API_KEY": created["api_key"], "SLUG": f"{name}/chat"}


def test_python_package_and_its_programs_pass_strict_checks(packages: Packages) -> None:
    first = packages.first_program("python", "py", "acme/assistant")
    programs = (first, PROGRAMS / "journey.py", PROGRAMS / "repeats.py")
    assert packages.check_python(packages.python / "tollgate_client", *programs) == ""


def test_first_python_program_of_the_readme_runs(packages: Packages, settings: dict[str, str]) -> None:
    program = packages.first_program("python", "py", settings["SLUG"])
    assert_first_program(packages.run_python(program, **settings))


def test_first_typescript_program_of_the_readme_runs(compiled: Packages, workspace: Workspace) -> None:
    settings = environment_of(workspace.product, README_WORKSPACE)
    assert_first_program(compiled.run_node("first_program", **settings))


def assert_first_program(output: str) -> None:
    assert "give this key to the customer: tg_" in output
    assert " first-customer\n" in output


def test_bare_types_of_the_document_work(compiled: Packages, settings: dict[str, str]) -> None:
    compiled.run_node("bare", **settings)


async def test_programs_use_resources_pages_errors_limits_and_webhooks(
    compiled: Packages, tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    customer = await Customer.with_receivers(tmp_path, "hook")
    product = Product(tmp_path / "data", workers=1, settings=customer.settings)
    try:
        await asyncio.to_thread(product.start)
        message = tmp_path / "message.json"
        message.write_text(json.dumps(await message_of(product, customer, upstream)))
        python = environment_of(product, "python")
        await asyncio.to_thread(compiled.run_python, PROGRAMS / "journey.py", str(message), **python)
        typescript = environment_of(product, "typescript")
        await asyncio.to_thread(compiled.run_node, "journey", str(message), **typescript)
        assert python["TOLLGATE_API_KEY"] not in product.log.read_text()
    finally:
        await asyncio.to_thread(product.kill)
        await customer.stop()


async def message_of(product: Product, customer: Customer, upstream: ScriptedUpstream) -> dict[str, str]:
    """Return a message that the product posted while two secrets signed, and the older secret."""
    (receiver,) = customer.receivers
    async with aiohttp.ClientSession() as session:
        operator = stage_of(await asyncio.to_thread(Workspace, product), session, upstream, "own").operator
        webhook = await operator.call("POST", "/v1/gateway/webhooks", {"url": receiver.url})
        path = f"/v1/gateway/webhooks/{webhook['id']}"
        await operator.call("PATCH", path, {"rotate_secret": True, "secret_overlap_seconds": 600})
        await operator.call("POST", f"{path}/test")
        await eventually(lambda: receiver.messages, product.log_tail)
    message = receiver.messages[0]
    assert message.headers["webhook-signature"].count("v1,") == 2
    return {
        "id": message.id,
        "timestamp": message.headers["webhook-timestamp"],
        "signature": message.headers["webhook-signature"],
        "secret": webhook["secret"],
        "body": base64.b64encode(message.body).decode(),
    }


Answer = tuple[int, Any, dict[str, str]]
LIMITED: Answer = (429, {"error": "limited", "code": "RATE_LIMITED", "retry_after": 1}, {})
TOO_LONG: Answer = (429, {"error": "limited", "code": "RATE_LIMITED"}, {"Retry-After": "3600"})
AWAY: Answer = (503, {"error": "away", "code": "DATABASE_UNAVAILABLE"}, {})
UNDER_WAY: Answer = (409, {"error": "under way", "code": "IDEMPOTENCY_CONFLICT", "retry_after": 1}, {})
TAKEN: Answer = (409, {"error": "taken", "code": "CONFLICT"}, {})
MOVED: Answer = (302, "", {"Location": "/elsewhere"})
HTML: Answer = (502, "<h1>Bad gateway</h1>", {})
LOGIN_PAGE: Answer = (200, "<h1>Log in</h1>", {})
LOST: Answer = (0, "", {})
"""No answer: the connection is closed after the request was read."""
GONE: Answer = (404, {"error": "deployment not found", "code": "NOT_FOUND"}, {})
PAGE: Answer = (
    200,
    {"items": [], "pagination": {"has_more": False, "cursor": None}, "of_a_newer_api": 1},
    {},
)
CREATED: Answer = (
    200,
    {
        "api_key": "tg_new.secret",
        "prefix": "tg_new",
        "name": None,
        "created_at": "2026-11-30T00:00:00.000Z",
        "type": "WORKSPACE_INVOKE",
        "role": None,
        "of_a_newer_api": {"a": [1]},
    },
    {},
)


class Script:
    """A server that gives each request the next answer, and records what it got."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = iter(answers)
        self.keys: list[str | None] = []
        """The `Idempotency-Key` of each request."""

    @property
    def is_used_up(self) -> bool:
        return next(self._answers, None) is None

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        self.keys.append(request.headers.get("Idempotency-Key"))
        status, body, headers = next(self._answers)
        if status == 0:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if isinstance(body, str):
            return web.Response(status=status, text=body, content_type="text/html", headers=headers)
        return web.json_response(body, status=status, headers=headers)


@asynccontextmanager
async def served(script: Script) -> AsyncIterator[dict[str, str]]:
    """Yield the environment of a program that calls the scripted server."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield {"TOLLGATE_URL": f"http://127.0.0.1:{runner.addresses[0][1]}", "TOLLGATE_API_KEY": KEY}
    finally:
        await runner.cleanup()


CASES: tuple[tuple[str, tuple[Answer, ...], str], ...] = (
    ("read", (LIMITED, PAGE), "ok"),
    ("read", (AWAY, LOST, HTML, PAGE), "ok"),
    ("read", (AWAY,) * 5, "DATABASE_UNAVAILABLE"),
    ("read", (LOST,) * 5, "NO_ANSWER"),
    ("read", (TOO_LONG,), "RATE_LIMITED"),
    ("read", (MOVED,), "FOREIGN_ANSWER"),
    ("read", (LOGIN_PAGE,), "FOREIGN_ANSWER"),
    ("act", (LIMITED, GONE), "NOT_FOUND"),
    ("act", (AWAY,), "DATABASE_UNAVAILABLE"),
    ("act", (LOST,), "NO_ANSWER"),
    ("create", (AWAY, LOST, UNDER_WAY, CREATED), "ok"),
    ("create", (CREATED,), "ok"),
    ("create_own", (AWAY, TAKEN), "CONFLICT"),
)
"""Calls, the answers to their requests one after the other, and what becomes of each."""


@pytest.mark.parametrize("language", LANGUAGES)
async def test_request_is_repeated_only_where_that_does_nothing_twice(compiled: Packages, language: str) -> None:
    script = Script(*(answer for _, answers, _ in CASES for answer in answers))
    calls = [call for call, _, _ in CASES]
    async with served(script) as environment:
        if language == "python":
            output = await asyncio.to_thread(compiled.run_python, PROGRAMS / "repeats.py", *calls, **environment)
        else:
            output = await asyncio.to_thread(compiled.run_node, "repeats", *calls, **environment)
    assert output.split() == [outcome for _, _, outcome in CASES]
    assert script.is_used_up
    first, *repeats, second, own, own_again = script.keys[-7:]
    assert repeats == [first] * 3
    assert len({first, second, "own", None}) == 4
    assert (own, own_again) == ("own", "own")
    assert {*script.keys[:-7]} == {None}
