"""Groups at the bound on models, and older larger ones: no tenant's request blocks the event loop for others."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from io import BytesIO
from types import FrameType
from typing import Any

import pytest

from control.api.groups import GatewayGroupsResponseV1, GatewayGroupV1
from policy.limits.groups import MAX_MODELS
from tests.control.api.large_groups import full_models, full_tree, old_group
from tests.control.plane import SLUG, ControlPlane

PATH = "/v1/gateway/groups"
MOST_CALLS = 20_000
"""The number of calls of functions that a turn of the loop may make: about 2 ms."""


async def longest_turn(work: Awaitable[Any]) -> int:
    """The number of calls in the longest turn of the event loop while `work` runs: no other load changes it."""
    turns: list[int] = []
    over = asyncio.Event()
    calls = 0

    def count(_frame: FrameType, event: str, _function: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def take_turns() -> None:
        nonlocal calls
        while not over.is_set():
            calls = 0
            await asyncio.sleep(0)
            turns.append(calls)

    taking_turns = asyncio.create_task(take_turns())
    sys.setprofile(count)  # of this thread, which is the loop's
    try:
        await work
    finally:
        sys.setprofile(None)
    over.set()
    await taking_turns
    return max(turns)


async def test_a_group_above_the_bound_on_models_is_refused(sqlite_plane: ControlPlane) -> None:
    most = [{"slug": f"acme/{n}"} for n in range(MAX_MODELS)]
    group = await sqlite_plane.group("most", models=most)
    assert len(group["models"]) == len(group["effective_models"]) == MAX_MODELS
    refused = (await sqlite_plane.try_group("more", models=[*most, {"slug": SLUG}])).refused(400, "INVALID_REQUEST")
    assert refused["details"][0]["field"] == "models"
    one = f"{PATH}/{group['id']}"
    refused = (await sqlite_plane.patch(one, {"models": [*most, {"slug": SLUG}]})).refused(400, "INVALID_REQUEST")
    assert refused["details"][0]["field"] == "models"
    schemas = (await sqlite_plane.get("/v1/openapi.json")).ok()["components"]["schemas"]
    assert schemas["CreateGatewayGroupRequestV1"]["properties"]["models"]["maxItems"] == MAX_MODELS
    (choice, _null) = schemas["UpdateGatewayGroupRequestV1"]["properties"]["models"]["anyOf"]
    assert choice["maxItems"] == MAX_MODELS


async def test_a_group_older_than_the_bound_can_be_read_used_and_deleted(plane: ControlPlane) -> None:
    models = full_models(3 * MAX_MODELS)
    root = await old_group(plane, "root", models)
    leaf = await old_group(plane, "leaf", models, root)
    group = (await plane.get(f"{PATH}/{leaf}")).ok()
    assert group["models"] == models
    (rate, _, upper, _) = group["effective_models"][-1]["rate_limits"]
    assert (rate["source_group"], upper["source_group"]) == (leaf, root)
    usage = (await plane.get(f"{PATH}/{leaf}/usage?limit=1000")).ok()
    assert (len(usage["items"]), usage["pagination"]["has_more"]) == (1000, True)
    renamed = (await plane.patch(f"{PATH}/{leaf}", {"metadata": {"name": "old"}})).ok()
    assert (renamed["metadata"]["name"], len(renamed["models"])) == ("old", len(models))
    (await plane.post(f"{PATH}/{leaf}/api_keys", {"name": "k"})).ok()
    lowered = await plane.patch(f"{PATH}/{root}", {"models": full_models(1, threshold=999)})
    lowered.refused(400, "CHILD_EXCEEDS_PARENT_LIMIT")
    (await plane.delete(f"{PATH}/{root}")).ok()
    (await plane.get(f"{PATH}/{leaf}")).refused(404)


async def test_a_page_of_large_groups_ends_early(sqlite_plane: ControlPlane) -> None:
    large = [await old_group(sqlite_plane, f"{n}", full_models(6 * MAX_MODELS)) for n in range(3)]
    small = [
        await old_group(sqlite_plane, f"{n}", [{"slug": SLUG, "rate_limits": [], "usage_limits": []}])
        for n in range(3, 9)
    ]
    pages: list[list[str]] = []
    path = f"{PATH}?limit=1000"
    while path:
        page = (await sqlite_plane.get(path)).ok()
        GatewayGroupsResponseV1.model_validate(page)
        pages.append([group["id"] for group in page["items"]])
        path = f"{PATH}?cursor={page['pagination']['cursor']}" if page["pagination"]["has_more"] else ""
    assert pages == [[large[0]], [large[1]], [large[2], *small]]


async def test_a_long_answer_has_a_content_length_and_answers_head(sqlite_plane: ControlPlane) -> None:
    path = f"{PATH}/{(await sqlite_plane.group('most', models=full_models()))['id']}"
    headers = {"Authorization": f"Bearer {sqlite_plane.key}"}
    async with sqlite_plane.client.get(path, headers=headers) as answer:
        length = len(await answer.read())
        assert length > 500_000
        assert answer.headers["Content-Length"] == str(length)
    async with sqlite_plane.client.head(path, headers=headers) as head:
        own = {"Date": "", "X-Request-ID": ""}  # each answer's own
        assert {**head.headers, **own} == {**answer.headers, **own}


async def test_many_faults_are_counted_and_the_first_are_listed(sqlite_plane: ControlPlane) -> None:
    unknown = {f"field{n}": n for n in range(20)}
    models = [{"slug": SLUG} | unknown, *([{"slug": SLUG}] * (MAX_MODELS - 1)), {"slug": SLUG} | unknown]
    body = (await sqlite_plane.post(PATH, {"metadata": {}, "models": models})).refused(400, "INVALID_REQUEST")
    assert body["error"] == "Invalid body: metadata.external_entity_id: required (and 41 more)"
    fields = [detail["field"] for detail in body["details"]]
    assert fields[:2] == ["metadata.external_entity_id", "models"]
    assert fields[2::20] == ["models.0.field0", "models.1000.field0"]
    body = (await sqlite_plane.post(PATH, {"metadata": {}, "models": [{"slug": SLUG} | unknown] * 500})).refused(400)
    assert body["error"].endswith("required (and 10000 more)")
    assert len(body["details"]) == 50


async def test_hand_encoded_groups_match_their_schema(sqlite_plane: ControlPlane) -> None:
    parent = await sqlite_plane.group("p", models=full_models(2), mode="CASCADING")
    child = await sqlite_plane.group("c", parent["id"], models=full_models(1))
    assert GatewayGroupV1.model_validate(child).model_dump(mode="json") == child
    assert [list(entry) for entry in child["effective_models"]] == [["slug", "rate_limits", "usage_limits"]]


@pytest.mark.timeout(300)
async def test_a_request_at_the_bound_does_not_block_the_event_loop(sqlite_plane: ControlPlane) -> None:
    """Another tenant waits for a turn of the loop. Whatever looks at a tree's limits one by one runs beside it."""
    ids = await full_tree(sqlite_plane)
    deepest = f"{PATH}/{ids[-1]}"
    root = f"{PATH}/{ids[0]}"
    body = {
        "metadata": {"external_entity_id": "more"},
        "models": full_models(),
        "hierarchy": {"parent_group_id": ids[3]},
    }
    unknown = {f"field {n}": n for n in range(30)}
    faulty = {"metadata": {"external_entity_id": "x"}, "models": [{"slug": SLUG} | unknown] * MAX_MODELS}

    create, refused, raised, lowered = (
        json.dumps(request).encode()
        for request in (body, faulty, {"models": full_models(threshold=10_000)}, {"models": full_models(threshold=1)})
    )

    async def send(method: str, path: str, content: bytes | None = None) -> None:
        headers = {"Authorization": f"Bearer {sqlite_plane.key}", "Content-Type": "application/json"}
        data = None if content is None else BytesIO(content)  # sent in pieces, because the client shares the event loop
        async with sqlite_plane.client.request(method, path, headers=headers, data=data) as answer:
            await answer.read()

    requests: dict[str, Callable[[], Awaitable[Any]]] = {
        "create": lambda: send("POST", PATH, create),
        "refused": lambda: send("POST", PATH, refused),
        "get": lambda: send("GET", deepest),
        "three at once": lambda: asyncio.gather(*(send("GET", deepest) for _ in range(3))),
        "list": lambda: send("GET", f"{PATH}?limit=1000"),
        "usage": lambda: send("GET", f"{deepest}/usage?limit=1000"),
        "limits": lambda: send("GET", f"{deepest}/limits?limit=1000"),
        "change the root": lambda: send("PATCH", root, raised),
        "exceeding": lambda: send("PATCH", root, lowered),
        "delete": lambda: send("DELETE", root),
    }
    longest = {name: await longest_turn(make_request()) for name, make_request in requests.items()}
    print(longest)
    assert max(longest.values()) <= MOST_CALLS
