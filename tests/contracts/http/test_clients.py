"""Stock SDKs and strict clients on a real socket: every error message is shown, and HEAD has GET's headers."""

import asyncio
import http.client
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest

from policy.endpoints import Target
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from proxy.edges.http.http_exchange import status_line
from proxy.errors import UpstreamUnreachableError
from tests.fakes.directory import KEY, SLUG
from tests.fakes.front import Front, listening
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer

BOTH_LOOPS = True
CHAT: dict[str, Any] = {"model": SLUG, "messages": [{"role": "user", "content": "hi"}]}
ERRORS = {
    400: "stream_options.include_usage must be true or false",
    401: "Unauthorized",
    403: "Authentication failed",
    404: "The model 'acme/unknown' does not exist, or this key may not call it",
    413: "exceeds maximum size of 100000 bytes",
    429: f"Rate limit exceeded for {SLUG}: 1 REQUEST per MINUTE",
    502: "Upstream rejected the target's credential",
    503: "The upstream cannot be reached",
    529: "Capacity exhausted, try again later",
}
"""The message that the caller must see, by status."""


@pytest.fixture
def rig() -> PathRig:
    return PathRig()


@pytest.fixture
async def front(rig: PathRig) -> AsyncIterator[Front]:
    async with listening(rig.pipeline.handle) as front:
        yield front


def provoke(rig: PathRig, status: int) -> dict[str, Any]:
    """Prepare this status; returns the call's arguments."""
    match status:
        case 400:
            return CHAT | {"extra_body": {"stream_options": {"include_usage": "yes"}}}
        case 404:
            return CHAT | {"model": "acme/unknown"}
        case 413:
            return CHAT | {"messages": [{"role": "user", "content": "x" * 100_000}]}
        case 429:
            rig.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
            rig.upstream.will(answer(b'{"error":"no"}', 422))
        case 502:
            rig.upstream.will(answer(b"no", 401))
        case 503:
            rig.upstream.will(UpstreamUnreachableError())
        case 529:
            rig.upstream.will(answer(b"", 529))
    return CHAT


def key_for(status: int) -> str:
    return "nonsense" if status == 403 else KEY


def hooks_for(status: int) -> dict[str, Any]:
    """Return hooks that remove the credential just before sending, for 401: no SDK calls without one."""

    async def remove_credential(request: Any) -> None:
        for name in ("authorization", "x-api-key"):
            request.headers.pop(name, None)

    return {"request": [remove_credential]} if status == 401 else {}


@pytest.mark.parametrize("status", ERRORS)
async def test_openai_sdk_shows_each_error_message(rig: PathRig, front: Front, status: int) -> None:
    arguments = provoke(rig, status)
    url = f"http://127.0.0.1:{front.port}/v1"
    http_client = openai.DefaultAsyncHttpxClient(event_hooks=hooks_for(status))
    async with openai.AsyncOpenAI(
        base_url=url, api_key=key_for(status), max_retries=0, http_client=http_client
    ) as client:
        for _ in range(2 if status == 429 else 1):
            with pytest.raises(openai.APIStatusError) as raised:
                await client.chat.completions.create(**arguments)
    assert raised.value.status_code == status
    assert ERRORS[status] in str(raised.value.body)  # str() has the status alone: it expects a nested message
    assert ERRORS[status] in raised.value.response.reason_phrase


@pytest.mark.parametrize("status", ERRORS)
async def test_anthropic_sdk_shows_each_error_message_and_request_id(rig: PathRig, front: Front, status: int) -> None:
    arguments = provoke(rig, status) | {"max_tokens": 5}
    url = f"http://127.0.0.1:{front.port}"
    http_client = anthropic.DefaultAsyncHttpxClient(event_hooks=hooks_for(status))
    key = key_for(status)
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, http_client=http_client) as client:
        for _ in range(2 if status == 429 else 1):
            with pytest.raises(anthropic.APIStatusError) as raised:
                await client.messages.create(**arguments)
    assert raised.value.status_code == status
    assert ERRORS[status] in str(raised.value)
    assert ERRORS[status] in raised.value.response.reason_phrase
    assert raised.value.request_id == raised.value.response.headers["x-request-id"]


async def test_both_sdks_list_and_retrieve_models(front: Front) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key=KEY) as client:
        assert [model.id async for model in client.models.list()] == [SLUG]
        assert (await client.models.retrieve(SLUG)).id == SLUG
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("acme/unknown")
    async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{front.port}", api_key=KEY) as other:
        assert [model.id async for model in other.models.list()] == [SLUG]
        assert (await other.models.retrieve(SLUG)).display_name == SLUG


async def test_anthropic_sdk_pages_through_the_models_both_ways(rig: PathRig, front: Front) -> None:
    slugs = [f"acme/model-{number}" for number in range(5)]
    for slug in slugs:
        rig.directory.add_slug(slug, Target("VENDOR_B", secret_id="s1"))
    slugs.insert(0, SLUG)
    group = rig.directory.groups["g1"]
    rig.directory.groups["g1"] = replace(group, models=tuple(SlugLimits(slug) for slug in slugs))
    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{front.port}", api_key=KEY, max_retries=0
    ) as client:
        page = await client.models.list(limit=4)
        assert ([model.id for model in page.data], page.has_more, page.first_id) == (slugs[:4], True, slugs[0])
        assert [model.id async for model in client.models.list(limit=2)] == slugs
        before = await client.models.list(limit=2, before_id=slugs[3])
        assert ([model.id for model in before.data], before.has_more) == (slugs[1:3], True)
        assert [model.id for model in (await client.models.list(after_id=slugs[3])).data] == slugs[4:]
        assert (await client.models.list(before_id=slugs[0])).data == []
        queries: tuple[dict[str, Any], ...] = ({"limit": 0}, {"limit": 1001}, {"after_id": "a", "before_id": "b"})
        for query in queries:
            with pytest.raises(anthropic.BadRequestError, match=next(iter(query))):
                await client.models.list(**query)


@pytest.mark.parametrize(
    "path", ["/v1/models", f"/v1/models/{SLUG}", "/v1/models/acme/unknown", "/v1/chat/completions"]
)
async def test_head_has_the_headers_of_get_and_keeps_the_connection(front: Front, path: str) -> None:
    def ask() -> list[tuple[int, dict[str, str], bytes]]:
        connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
        answers = []
        for method in ("HEAD", "GET", "HEAD"):
            connection.request(method, path, headers={"Authorization": f"Bearer {KEY}", "X-Request-Id": "r"})
            answer = connection.getresponse()
            fields = {name: value for name, value in answer.getheaders() if name != "date"}
            answers.append((answer.status, fields, answer.read()))
        connection.close()
        return answers

    first, got_answer, again = await asyncio.to_thread(ask)
    assert got_answer[2]
    assert first == again == (*got_answer[:2], b"")
    assert int(first[1]["content-length"]) == len(got_answer[2])


async def test_upstream_error_text_cannot_inject_headers(rig: PathRig, front: Front) -> None:
    rig.upstream.will(answer(b"no\r\nset-cookie: x=1\r\n\r\n<html> \xff \xc3\xa9 \x00\x1b[2J" + b"y" * 300, 500))
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key=KEY, max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as raised:
            await client.chat.completions.create(**CHAT)
    response = raised.value.response
    assert response.reason_phrase.startswith("no set-cookie: x=1 <html> ? ? ?")
    assert len(response.reason_phrase) == 200
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("plain", "HTTP/1.1 400 plain\r\n"),
        ("a\r\nb\nc\rd\x0be\x85f\u2028g", "HTTP/1.1 400 a b c d e f g\r\n"),
        ("é\x00\x7f", "HTTP/1.1 400 ???\r\n"),
        ("x" * 300, f"HTTP/1.1 400 {'x' * 200}\r\n"),
        (" \n ", "HTTP/1.1 400 \r\n"),
    ],
)
def test_status_line_is_visible_ascii(reason: str, line: str) -> None:
    assert status_line(400, reason) == line
