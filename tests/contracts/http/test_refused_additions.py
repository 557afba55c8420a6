"""A server that refuses what we add to a request is asked without it, at once and from then on."""

from typing import Any

import pytest

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES
from policy.snapshot import EndpointRow
from proxy.directory_values import Forwarding, KeyHolder, Shape
from proxy.records.head_facts import HeadFacts
from tests.contracts.http.asking import ask, ask_on, replica
from tests.contracts.http.test_path import Wire, wired
from tests.fakes.directory import SLUG, FakeDirectory, ready_directory
from tests.fakes.path import PathRig
from tests.upstream.behaviours import answer_json
from tests.upstream.oddities.row import chat_text, frames, refuses_then, sends

BOTH_LOOPS = True
REFUSAL = answer_json(422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"]}]})
COUNTED = sends(frames(*chat_text("Hello"), "[DONE]"))
STRICT = refuses_then(REFUSAL, unless=b"stream_options", answer=COUNTED)
COMPLETION = {"id": "c", "model": "m", "choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}]}
USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}


class KeepingDirectory(FakeDirectory):
    """A directory that keeps the shapes of calls, and counts their use."""

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)
        self.shapes: dict[tuple[HeadFacts, str], Shape] = {}
        self.forwardings: dict[tuple[tuple[object, ...], str], Forwarding] = {}
        self.holders: dict[str, KeyHolder | None] = {}
        self.uses = 0

    def key_holder(self, digest: str) -> KeyHolder | None:
        return self.holders.setdefault(digest, super().key_holder(digest))

    def shape(self, facts: HeadFacts, slug: str) -> Shape | None:
        shape = self.shapes.get((facts, slug))
        self.uses += shape is not None
        return shape

    def keep_shape(self, facts: HeadFacts, shape: Shape) -> None:
        self.shapes[facts, SLUG] = shape

    def forwarding(self, values: tuple[object, ...], slug: str) -> Forwarding | None:
        forwarding = self.forwardings.get((values, slug))
        self.uses += forwarding is not None
        return forwarding

    def keep_forwarding(self, values: tuple[object, ...], endpoint: EndpointRow, forwarding: Forwarding) -> None:
        self.forwardings[values, endpoint.slug] = forwarding


def asked_for_usage(wire: Wire) -> list[bool]:
    """Return, for each request that reached the server, whether it asked for the usage."""
    return [b"stream_options" in received.body for received in wire.upstream.received]


async def test_refusal_is_remembered_for_all_callers_of_the_target() -> None:
    async with replica(STRICT, (CHAT_COMPLETIONS,)) as wire:
        for caller in (CHAT_COMPLETIONS, MESSAGES, CHAT_COMPLETIONS):
            status, _, answer = await ask(wire, caller)
            assert (status, answer.text, answer.ended) == (200, "Hello", "complete")
        assert asked_for_usage(wire) == [True, False, False, False]
        await wire.until_logged(3)
        assert {call.tokens.output for call in wire.rig.journal.closed} == {1}


async def test_refusal_to_a_translated_call_is_remembered() -> None:
    async with replica(STRICT, (CHAT_COMPLETIONS,)) as wire:
        for caller in (MESSAGES, CHAT_COMPLETIONS):
            assert (await ask(wire, caller))[2].text == "Hello"
        assert asked_for_usage(wire) == [True, False, False]


async def test_refusal_of_another_member_is_not_remembered() -> None:
    refusal = answer_json(422, {"detail": [{"loc": ["body", "x"], "input": {"stream_options": {}}}]})
    async with replica(refusal, (CHAT_COMPLETIONS,)) as wire:
        assert [(await ask(wire, CHAT_COMPLETIONS))[0] for _ in range(2)] == [422, 422]
        assert asked_for_usage(wire) == [True, False, True, False]


async def test_call_shaped_by_an_earlier_one_is_asked_again() -> None:
    """The shape of a call says nothing of `stream`: one that was kept of a whole answer serves a stream, too."""
    directory = KeepingDirectory(**vars(ready_directory()))
    async with wired(PathRig(directory=directory)) as wire:
        assert [(await wire.answer())[0] for _ in range(3)] == [200] * 3
        wire.upstream.default = STRICT
        used_before = directory.uses
        for _ in range(3):
            caller = await wire.call(stream=True)
            assert b"Hello" in await caller.until(b"0\r\n\r\n")
            caller.disconnect()
        assert directory.uses == used_before + 3
        assert asked_for_usage(wire) == [False, False, False, True, False, False, False]
        await wire.until_logged(6)
        assert [call.tokens.output for call in wire.rig.journal.closed[3:]] == [1, 1, 1]


@pytest.mark.parametrize("choices", [{}, {"choices": None}, {"choices": []}], ids=["absent", "null", "empty"])
async def test_usage_of_a_completion_is_removed_whatever_its_choices(choices: dict[str, Any]) -> None:
    chunk = {"id": "c", "model": "m", "usage": USAGE} | choices
    async with replica(sends(frames(COMPLETION, chunk, "[DONE]")), (CHAT_COMPLETIONS,)) as wire:
        body = {"model": SLUG, "prompt": "hi", "stream": True}
        status, raw, _ = await ask_on(wire, "/v1/completions", body, CHAT_COMPLETIONS)
        assert status == 200
        assert b"Hello" in raw
        assert b"usage" not in raw
        await wire.until_logged()
        assert wire.billed == Tokens(input=12, output=5)


async def test_completions_are_asked_without_what_is_refused() -> None:
    strict = refuses_then(REFUSAL, unless=b"stream_options", answer=sends(frames(COMPLETION, "[DONE]")))
    async with replica(strict, (CHAT_COMPLETIONS,)) as wire:
        body = {"model": SLUG, "prompt": "hi", "stream": True}
        assert (await ask_on(wire, "/v1/completions", body, CHAT_COMPLETIONS))[0] == 200
        assert asked_for_usage(wire) == [True, False]
        await wire.until_logged()
        assert wire.billed.output == 1
