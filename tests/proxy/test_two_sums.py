"""The pipeline admits by what calls in flight can cost at most, in every dialect, and counts what goes beyond."""

from typing import Any

import pytest

from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from proxy.accounting.call_bound import EDITED_PICTURE_TOKENS, MOST_EDITS, TOOLS_TOKENS
from proxy.forms.form_reader import FormReader
from proxy.refusals import MalformedRequestError
from tests.fakes.directory import SLUG
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming

THRESHOLD = 1_000_000
ASSUMED = 8192
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
USED = b'{"model":"m","usage":{"prompt_tokens":%d,"completion_tokens":%d}}'


@pytest.fixture
def rig() -> PathRig:
    path_rig = PathRig()
    path_rig.directory.limit(Limit(LimitType.TOKEN, Unit.DAY, THRESHOLD))
    return path_rig


async def most_of(rig: PathRig, path: str, members: dict[str, Any]) -> int:
    """Return the most tokens that a call was taken to cost, beside the bytes of its body."""
    incoming = FakeIncoming(path).saying({"model": SLUG, **members})
    body_bytes = incoming.declared_bytes or 0
    rig.upstream.will(answer(USED % (1, 1)))
    await rig.serve(incoming)
    [settled] = rig.counters.settled
    return settled.reservation.reserved_tokens + settled.reservation.margin_tokens - body_bytes


@pytest.mark.parametrize(
    ("path", "members", "most"),
    [
        ("/v1/chat/completions", CHAT, ASSUMED),
        ("/v1/chat/completions", CHAT | {"max_tokens": 100}, 100),
        ("/v1/chat/completions", CHAT | {"max_tokens": 1, "max_completion_tokens": 300}, 300),
        ("/v1/chat/completions", CHAT | {"max_tokens": 1, "n_predict": 4000}, 4000),
        ("/v1/chat/completions", CHAT | {"max_tokens": 1, "n_predict": -1}, ASSUMED),
        ("/v1/chat/completions", CHAT | {"max_tokens": 0}, ASSUMED),
        ("/v1/chat/completions", CHAT | {"max_tokens": 100, "n": 128}, 12_800),
        ("/v1/chat/completions", CHAT | {"n": 4}, 4 * ASSUMED),
        ("/v1/chat/completions", CHAT | {"max_tokens": 5, "tools": [{"type": "function"}]}, TOOLS_TOKENS + 5),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 50, "n": 2, "best_of": 3}, 600),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 70}, 70),
        ("/v1/messages", CHAT | {"max_tokens": 80}, 80),
        ("/v1/embeddings", {"input": "hi"}, 0),
        ("/v1/images/generations", {"prompt": "hi", "n": 3}, 3 * ASSUMED),
    ],
)
async def test_reservation_holds_the_most_that_a_call_can_cost(
    rig: PathRig, path: str, members: dict[str, Any], most: int
) -> None:
    reserved = await most_of(rig, path, members)
    if path == "/v1/embeddings":  # expected as an answer of unknown length: the most is never below that
        assert 0 <= reserved <= 512
    else:
        assert reserved == most


@pytest.mark.parametrize(
    "members", [{"max_tokens": 2**63 - 1, "n": 2**62}, {"n": 2**63 - 1}, {"max_tokens": 2**64 - 1}]
)
async def test_figures_of_many_digits_reserve_no_more_than_an_event_can_report(
    rig: PathRig, members: dict[str, Any]
) -> None:
    rig.upstream.will(answer(USED % (1, 1)))
    await rig.serve(FakeIncoming().saying({"model": SLUG, **CHAT, **members}))
    [settled] = rig.counters.settled
    assert settled.reservation.reserved_tokens + settled.reservation.margin_tokens == 2**53 - 1


@pytest.mark.parametrize("name", ["n", "best_of", "n_predict", "max_new_tokens"])
@pytest.mark.parametrize("value", ["5", True, 1.5, 1e308, [], {}])
async def test_count_of_another_type_is_a_400_that_names_it(rig: PathRig, name: str, value: object) -> None:
    outgoing = await rig.serve(FakeIncoming().saying({"model": SLUG, **CHAT, name: value}))
    assert outgoing.status == 400
    assert name in outgoing.json["error"]


async def test_tokens_beyond_the_most_are_settled_and_counted(rig: PathRig) -> None:
    body = FakeIncoming().saying({"model": SLUG, **CHAT})
    most = (body.declared_bytes or 0) + ASSUMED
    rig.upstream.will(answer(USED % (9, most)))
    await rig.serve(body)
    assert rig.meters.overrun_tokens == 9
    assert [one.actual_tokens for one in rig.counters.settled] == [most + 9]


async def test_call_within_its_most_is_no_overrun(rig: PathRig) -> None:
    rig.upstream.will(answer(USED % (9, 8_000)))
    await rig.serve(FakeIncoming().saying({"model": SLUG, **CHAT}))
    assert rig.meters.overrun_tokens == 0


def form(*parts: tuple[str, str]) -> bytes:
    texts = (f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts)
    return "".join(texts).encode() + b"--b--\r\n"


def editing(*parts: tuple[str, str]) -> FakeIncoming:
    return FakeIncoming("/v1/images/edits", content_type="multipart/form-data; boundary=b").saying(form(*parts))


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ([("n", "7"), ("model", SLUG)], 7),
        ([("n", "500"), ("prompt", "cat"), ("model", SLUG)], 500),
        ([("n", "0"), ("model", SLUG)], 1),
        ([("model", SLUG), ("prompt", "cat")], MOST_EDITS),
    ],
)
async def test_form_reserves_for_as_many_answers_as_it_may_ask_for(
    rig: PathRig, parts: list[tuple[str, str]], count: int
) -> None:
    await rig.serve(editing(*parts))
    [settled] = rig.counters.settled
    reserved = settled.reservation.reserved_tokens + settled.reservation.margin_tokens
    assert reserved == 16 * EDITED_PICTURE_TOKENS + count * ASSUMED


def test_n_behind_the_model_is_refused_above_what_was_reserved() -> None:
    reader = FormReader(b"b")
    reader.feed(form(("model", SLUG)).removesuffix(b"--b--\r\n"))
    reader.most_n = 10
    with pytest.raises(MalformedRequestError, match="n above 10 must stand before model"):
        reader.feed(form(("n", "11")))


@pytest.mark.parametrize("value", ["", "x", "1.5", "-1", "1e9", "٣", "10000000000"])
async def test_n_of_a_form_that_is_no_whole_number_is_a_400_that_names_it(rig: PathRig, value: str) -> None:
    outgoing = await rig.serve(editing(("n", value), ("model", SLUG)))
    assert outgoing.status == 400
    assert outgoing.json["error"].startswith("n must be")
