"""Requests too large to be translated are refused before any work, with all that the call took returned."""

import asyncio
from typing import Any

import orjson
import pytest

from policy.endpoints import Target
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from proxy.dialects.middle.bounds import MAX_CONTAINERS, MAX_TOOLS
from runtime.shares.places import MAX_WAITING
from tests.fakes.directory import SLUG
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing

ANSWER = b'{"id":"m","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":3,"output_tokens":2}}'
ASKS: dict[str, Any] = {"model": SLUG, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def rig() -> PathRig:
    path_rig = PathRig(max_body_bytes=100_000_000)
    path_rig.directory.add_slug(SLUG, Target("VENDOR_A", secret_id="s1", target_model="m"))
    path_rig.directory.limit(Limit(LimitType.REQUEST, Unit.DAY, 1000), Limit(LimitType.TOKEN, Unit.DAY, 10**9))
    return path_rig


def used(rig: PathRig) -> list[int]:
    [counts] = [counts for book in rig.counters.books.values() for counts in book.groups.values()]
    return [counts.used((kind, Unit.DAY)) for kind in (LimitType.REQUEST, LimitType.TOKEN)]


def chat_tools(count: int) -> list[Any]:
    return [{"type": "function", "function": {"name": f"t{number}"}} for number in range(count)]


def function(number: int) -> dict[str, Any]:
    return {"type": "function", "name": f"t{number}"}


def namespace(count: int) -> dict[str, Any]:
    return {"type": "namespace", "name": "n", "tools": list(map(function, range(count)))}


def depth(count: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"items": [{}] * count, "text": "x" * 20_000}
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
TOO_MUCH: dict[str, tuple[str, dict[str, Any], str]] = {
    "tools": (CHAT, ASKS | {"tools": chat_tools(MAX_TOOLS + 1)}, "tools"),
    "tools in namespaces": (
        RESPONSES,
        {"model": SLUG, "input": "hi", "tools": [namespace(MAX_TOOLS // 2), namespace(MAX_TOOLS // 2)]},
        "tools",
    ),
    "additional tools": (
        RESPONSES,
        {
            "model": SLUG,
            "input": [{"type": "additional_tools", "tools": [function(number)]} for number in range(MAX_TOOLS + 1)],
        },
        "tools",
    ),
    "objects": (CHAT, ASKS | {"response_format": depth(MAX_CONTAINERS)}, "response_format"),
}


@pytest.mark.parametrize(("path", "body", "field"), TOO_MUCH.values(), ids=TOO_MUCH)
async def test_call_with_too_much_to_translate_is_refused_and_returns_all_it_took(
    rig: PathRig, path: str, body: dict[str, Any], field: str
) -> None:
    outgoing = await rig.serve(FakeIncoming(path).saying(orjson.dumps(body)))
    assert (outgoing.status, outgoing.json["error_code"]) == (400, "UNTRANSLATABLE_REQUEST")
    assert outgoing.json["error"].startswith(f"{field}: ")
    assert "too many to be translated" in outgoing.json["error"]
    assert used(rig) == [0, 0]
    assert (rig.journal.opened, rig.upstream.calls) == ([], [])


async def test_braces_inside_of_texts_are_no_objects(rig: PathRig) -> None:
    rig.upstream.will(answer(ANSWER))
    texts = ["{" * 100 for _ in range(MAX_CONTAINERS // 50)]
    body = {"model": SLUG, "messages": [{"role": "user", "content": text} for text in texts]}
    assert (await rig.serve(FakeIncoming().saying(orjson.dumps(body)))).status == 200


async def test_long_history_with_many_tools_is_translated(rig: PathRig) -> None:
    """A megabyte of an agent's history, and 200 tools."""
    rig.upstream.will(answer(ANSWER))
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string", "enum": ["a", "b"]} for n in range(5)}}
    tools = [{"type": "function", "function": {"name": f"t{n}", "parameters": schema}} for n in range(200)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "begin"}]
    for number in range(400):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "t1", "arguments": '{"p1":"a"}'}}
        messages.append({"role": "assistant", "content": "text " * 100, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "found {} [] " * 170})
    raw = orjson.dumps({"model": SLUG, "messages": messages, "tools": tools})
    assert len(raw) > 1_000_000
    assert (await rig.serve(FakeIncoming().saying(raw))).status == 200
    body = orjson.loads(bytes(rig.upstream.calls[0].body))
    assert (len(body["tools"]), len(body["messages"])) == (200, 801)


async def test_call_beyond_the_queue_of_its_workspace_is_shed_and_returns_all_it_took(rig: PathRig) -> None:
    many = MAX_WAITING + 3
    rig.upstream.will(*(answer(ANSWER) for _ in range(many)))
    body = orjson.dumps({"model": SLUG, "messages": [{"role": "user", "content": "x" * 30}] * 600})
    calls = [FakeIncoming().saying(body) for _ in range(many)]
    outgoings = [FakeOutgoing() for _ in calls]
    await asyncio.gather(*map(rig.pipeline.handle, calls, outgoings))
    shed = [outgoing for outgoing in outgoings if outgoing.status == 529]
    assert len(shed) == many - MAX_WAITING - 1
    assert [outgoing.header("retry-after") for outgoing in shed] == ["1"] * len(shed)
    assert sorted({outgoing.status for outgoing in outgoings}) == [200, 529]
    assert used(rig)[0] == many - len(shed)
    rig.check_settled()
