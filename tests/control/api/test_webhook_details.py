"""Webhooks whose messages have details and costs: as of queueing, the same bytes on each attempt."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from policy.billing import Details
from tests.control.api.test_webhooks import NAMES, PATH, QUIET, URL, Receivers, ingest_events, make_due, sending
from tests.control.plane import ControlPlane, running_plane
from tests.waiting import eventually

OTHER_URL = f"https://{NAMES[1]}.example.com/plain"
PRICE = {"slug": "acme/chat", "valid_from": "2020-01-01", "currency": "EUR", "output_per_million": "0"}


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with running_plane(database_url, **QUIET) as control_plane:
        yield control_plane


async def put_price(plane: ControlPlane, input_per_million: str) -> None:
    (await plane.put("/v1/gateway/prices", PRICE | {"input_per_million": input_per_million})).ok()


def events_of(receivers: Receivers, url: str = URL) -> list[Any]:
    bodies = [orjson.loads(body) for address, _, body in receivers.calls if address == url]
    return [event for body in bodies for event in body["data"]["events"]]


async def test_the_choice_is_made_shown_changed_and_audited(plane: ControlPlane) -> None:
    plain = (await plane.post(PATH, {"url": URL})).ok()
    assert plain["include_details"] is False
    webhook = (await plane.post(PATH, {"url": URL, "include_details": True})).ok()
    one = f"{PATH}/{webhook['id']}"
    assert webhook["include_details"] is (await plane.get(one)).ok()["include_details"] is True
    assert (await plane.patch(one, {"enabled": False})).ok()["include_details"] is True
    assert (await plane.patch(one, {"include_details": False})).ok()["include_details"] is False
    last = (await plane.get("/v1/audit_events")).ok()["items"][0]
    assert (last["action"], last["before"]["include_details"]) == ("webhook.update", True)
    assert last["after"]["include_details"] is False


@pytest.mark.parametrize("value", ["yes", 1, []])
async def test_a_choice_that_is_none_is_refused(sqlite_plane: ControlPlane, value: object) -> None:
    refused = (await sqlite_plane.post(PATH, {"url": URL, "include_details": value})).refused(400)
    assert refused["details"][0]["field"] == "include_details"


async def test_details_are_sent_to_the_webhooks_that_include_them_alone(plane: ControlPlane) -> None:
    (await plane.post(PATH, {"url": OTHER_URL})).ok()
    (await plane.post(PATH, {"url": URL, "include_details": True})).ok()
    await put_price(plane, "1")
    await ingest_events(plane, 1, source="REPORTED", details=Details(reasoning=4, service_tier="flex"))
    await ingest_events(plane, 2, model_slug="acme/unpriced", request_metadata={"trace": 7})
    receivers = Receivers()
    async with sending(plane.store, receivers) as counted:
        await eventually(lambda: len(counted) == 4)
    assert all("details" not in event and "cost" not in event for event in events_of(receivers, OTHER_URL))
    first, second = sorted(events_of(receivers), key=lambda event: event["requestId"])
    assert (first["details"]["reasoningTokens"], first["details"]["serviceTier"]) == (4, "flex")
    assert first["cost"] == {"amount": "0.000101", "currency": "EUR"}
    assert (second["cost"], second["requestMetadata"]) == (None, {"trace": 7})
    assert second["details"]["source"] is None
    assert first.keys() == second.keys()


async def test_each_attempt_has_the_costs_of_when_the_message_was_queued(plane: ControlPlane) -> None:
    webhook = (await plane.post(PATH, {"url": URL, "include_details": True})).ok()
    await put_price(plane, "1")
    await ingest_events(plane, 1)
    answers = iter([500, 500, 200])
    receivers = Receivers(answer=lambda url: next(answers))
    async with sending(plane.store, receivers) as counted:
        await eventually(lambda: len(counted) >= 1)
        await put_price(plane, "2")
        await make_due(plane.store)  # on a busy machine the retry may come before it by itself
        await eventually(lambda: len(counted) >= 2)
        (await plane.patch(f"{PATH}/{webhook['id']}", {"include_details": False})).ok()
        await make_due(plane.store)
        await eventually(lambda: len(counted) == 3)
    assert len({body for _, _, body in receivers.calls}) == 1
    assert events_of(receivers)[0]["cost"] == {"amount": "0.000101", "currency": "EUR"}


async def test_a_message_that_was_queued_without_details_never_gets_them(plane: ControlPlane) -> None:
    webhook = (await plane.post(PATH, {"url": URL})).ok()
    await ingest_events(plane, 1)
    (await plane.patch(f"{PATH}/{webhook['id']}", {"include_details": True})).ok()
    receivers = Receivers()
    async with sending(plane.store, receivers) as counted:
        await eventually(lambda: len(counted) == 1)
    assert "details" not in events_of(receivers)[0]
