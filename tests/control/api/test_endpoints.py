"""`/v1/gateway/endpoints` over HTTP, on both databases (docs/reference/management-api.md#endpoints)."""

import asyncio
from typing import Any

import pytest

from policy.endpoints import PROVIDERS as TABLE
from tests.control.plane import ControlPlane

PATH = "/v1/gateway/endpoints"


async def vendor_b(plane: ControlPlane) -> dict[str, Any]:
    return {"provider": "VENDOR_B", "secret_id": await plane.secret(), "target_model": "big-1"}


async def test_an_endpoint_is_created_read_changed_and_deleted(plane: ControlPlane) -> None:
    target = await vendor_b(plane)
    endpoint = (await plane.post(PATH, {"slug": "acme/chat", "targets": [target]})).ok()
    assert endpoint["slug"] == "acme/chat"
    assert endpoint["targets"] == [target]
    assert endpoint["created_at"] == endpoint["updated_at"]
    one = f"{PATH}/{endpoint['id']}"
    assert (await plane.get(one)).ok() == endpoint
    changed = (await plane.patch(one, {"targets": [{**target, "target_model": "big-2"}]})).ok()
    assert changed["targets"][0]["target_model"] == "big-2"
    assert changed["slug"] == "acme/chat"
    assert changed["updated_at"] > endpoint["updated_at"]
    assert (await plane.delete(one)).ok() == {"id": endpoint["id"], "slug": "acme/chat", "deleted": True}
    (await plane.get(one)).refused(404)
    (await plane.delete(one)).refused(404)
    assert (await plane.post(PATH, {"slug": "acme/chat", "targets": [target]})).status == 200, "the slug is free again"


async def test_a_slug_is_unique_under_concurrent_creates(plane: ControlPlane) -> None:
    target = await vendor_b(plane)
    answers = await asyncio.gather(*(plane.post(PATH, {"slug": "acme/one", "targets": [target]}) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 7
    assert {answer.body["code"] for answer in answers if answer.status == 409} == {"CONFLICT"}


async def test_pages_of_a_list_join_into_the_whole(plane: ControlPlane) -> None:
    target = await vendor_b(plane)
    for number in range(5):
        (await plane.post(PATH, {"slug": f"acme/m{number}", "targets": [target]})).ok()
    slugs = []
    url = f"{PATH}?limit=2"
    for _ in range(3):
        page = (await plane.get(url)).ok()
        slugs += [item["slug"] for item in page["items"]]
        if not page["pagination"]["has_more"]:
            break
        url = f"{PATH}?cursor={page['pagination']['cursor']}&limit=nonsense&whatever=1"
    assert page["pagination"] == {"has_more": False, "cursor": None}
    assert slugs == [f"acme/m{number}" for number in range(5)]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "ten", "1.5", "", "9" * 30])
async def test_a_page_has_1_to_1000_items(sqlite_plane: ControlPlane, limit: str) -> None:
    body = (await sqlite_plane.get(f"{PATH}?limit={limit}")).refused(400)
    assert body["details"][0]["field"] == "limit"


async def test_endpoints_of_other_workspaces_are_not_visible(plane: ControlPlane) -> None:
    endpoint = (await plane.post(PATH, {"slug": "acme/chat", "targets": [await vendor_b(plane)]})).ok()
    key = (await plane.another_workspace())["api_key"]
    one = f"{PATH}/{endpoint['id']}"
    (await plane.get(one, key=key)).refused(404)
    (await plane.call("PATCH", one, {"targets": endpoint["targets"]}, key=key)).refused(400)
    (await plane.delete(one, key=key)).refused(404)
    assert (await plane.get(PATH, key=key)).ok()["items"] == []


PROVIDERS: dict[str, dict[str, Any]] = {
    "PLATFORM_MODEL_API": {"secret_id": "S", "target_model": "m"},
    "VENDOR_A": {"secret_id": "S", "target_model": "m"},
    "VENDOR_B": {"secret_id": "S", "target_model": "m"},
    "VENDOR_C": {
        "secret_id": "S",
        "target_model": "m",
        "vendor_c_config": {"project_id": "p", "location": "eu-1"},
    },
    "VENDOR_B_COMPATIBLE": {"secret_id": "S", "target_model": "m", "base_url": "https://203.0.113.1.invalid"},
    "PLATFORM": {"model_id": "M"},
}


async def filled(plane: ControlPlane, provider: str) -> dict[str, Any]:
    fields = {"provider": provider, **PROVIDERS[provider]}
    if "secret_id" in fields:
        fields["secret_id"] = await plane.secret()
    if "model_id" in fields:
        fields["model_id"] = (await plane.post("/v1/models", {"name": "own"})).ok()["id"]
    return fields


@pytest.mark.parametrize("provider", TABLE)
async def test_a_target_has_all_fields_of_its_provider_and_no_other(sqlite_plane: ControlPlane, provider: str) -> None:
    target = await filled(sqlite_plane, provider)
    endpoint = (await sqlite_plane.post(PATH, {"slug": "acme/x", "targets": [target]})).ok()
    assert endpoint["targets"] == [target]
    for name in PROVIDERS[provider]:
        less = {field: value for field, value in target.items() if field != name}
        body = (await sqlite_plane.post(PATH, {"slug": "acme/y", "targets": [less]})).refused(400)
        assert {"field": f"targets.0.{name}", "message": "required"} in body["details"]
    foreign = "base_url" if provider != "VENDOR_B_COMPATIBLE" else "model_id"
    more = {**target, foreign: "https://example.com"}
    body = (await sqlite_plane.post(PATH, {"slug": "acme/y", "targets": [more]})).refused(400)
    assert body["details"] == [{"field": f"targets.0.{foreign}", "message": "unknown field"}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"slug": "acme", "targets": 1}, "slug"),
        ({"slug": "other/x", "targets": 1}, "slug"),
        ({"slug": "acme/x/y", "targets": 1}, "slug"),
        ({"slug": "acme/ümlaut", "targets": 1}, "slug"),
        ({"slug": "acme/" + "x" * 129, "targets": 1}, "slug"),
        ({"slug": "acme/x\n", "targets": 1}, "slug"),
        ({"slug": 7, "targets": 1}, "slug"),
        ({"targets": 1}, "slug"),
        ({"slug": "acme/x"}, "targets"),
        ({"slug": "acme/x", "targets": 0}, "targets"),
        ({"slug": "acme/x", "targets": 2}, "targets"),
        ({"slug": "acme/x", "targets": {}}, "targets"),
        ({"slug": "acme/x", "targets": 1, "extra": 1}, "extra"),
    ],
)
async def test_an_invalid_body_is_400_and_names_the_field(
    sqlite_plane: ControlPlane, body: dict[str, Any], field: str
) -> None:
    if isinstance(body.get("targets"), int):
        body = {**body, "targets": [await vendor_b(sqlite_plane)] * body["targets"]}
    details = (await sqlite_plane.post(PATH, body)).refused(400, "INVALID_REQUEST")["details"]
    assert [detail["field"] for detail in details] == [field]


async def test_references_to_another_workspace_are_refused(plane: ControlPlane) -> None:
    key = (await plane.another_workspace())["api_key"]
    theirs = (await plane.post("/v1/secrets", {"name": "x", "value": "y"}, key=key)).ok()["id"]
    model = (await plane.post("/v1/models", {"name": "x"}, key=key)).ok()["id"]
    for secret_id in (theirs, "sec_none"):
        target = {"provider": "VENDOR_B", "secret_id": secret_id, "target_model": "m"}
        body = (await plane.post(PATH, {"slug": "acme/x", "targets": [target]})).refused(400)
        assert body["details"][0]["field"] == "targets.0.secret_id"
    for model_id in (model, "mdl_none"):
        target = {"provider": "PLATFORM", "model_id": model_id}
        body = (await plane.post(PATH, {"slug": "acme/x", "targets": [target]})).refused(400)
        assert body["details"][0]["field"] == "targets.0.model_id"


async def test_the_slug_is_immutable(sqlite_plane: ControlPlane) -> None:
    target = await vendor_b(sqlite_plane)
    endpoint = (await sqlite_plane.post(PATH, {"slug": "acme/chat", "targets": [target]})).ok()
    body = (await sqlite_plane.patch(f"{PATH}/{endpoint['id']}", {"slug": "acme/new", "targets": [target]})).refused(
        400
    )
    assert body["details"] == [{"field": "slug", "message": "unknown field"}]


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com", "https://example.com:443", "https://u:p@example.com", "https://127.0.0.1"),
        *(
            "https://0x7f.1",
            "https://[::1]",
            "https://10.0.0.1",
            "https://localhost",
            "https://x.internal",
            "ftp://x.com",
        ),
        *("https://169.254.169.254", "https://[::ffff:127.0.0.1]", "https://example.com:", "https://", "example.com"),
    ],
)
async def test_a_base_url_that_is_not_public_is_refused(sqlite_plane: ControlPlane, url: str) -> None:
    target = {**await filled(sqlite_plane, "VENDOR_B_COMPATIBLE"), "base_url": url}
    body = (await sqlite_plane.post(PATH, {"slug": "acme/x", "targets": [target]})).refused(400)
    assert [detail["field"] for detail in body["details"]] == ["targets.0.base_url"]


ALL_TARGET_FIELDS = (
    *("model_id", "environment_name", "secret_id", "target_model", "base_url", "vendor_c_config"),
    *("upstream_state", "dialects", "price_options"),
)


async def test_a_targets_unused_fields_may_be_null(sqlite_plane: ControlPlane) -> None:
    fields = {"provider": "VENDOR_B", "secret_id": await sqlite_plane.secret(), "target_model": "big-1"}
    target = dict.fromkeys(ALL_TARGET_FIELDS) | fields
    endpoint = (await sqlite_plane.post(PATH, {"slug": "acme/nulls", "targets": [target]})).ok()
    assert endpoint["targets"] == [fields]
    assert (await sqlite_plane.patch(f"{PATH}/{endpoint['id']}", {"targets": [target]})).ok()["targets"] == [fields]
    (await sqlite_plane.patch(f"{PATH}/{endpoint['id']}", {"targets": [target | {"secret_id": None}]})).refused(400)


OPTIONS = {"upstream_state": "PASS", "dialects": ["RESPONSES", "CHAT_COMPLETIONS"], "price_options": "REFUSE"}


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_options_of_a_target_are_answered_as_written_and_replaced_with_it(
    plane: ControlPlane, provider: str
) -> None:
    plain = await filled(plane, provider)
    endpoint = (await plane.post(PATH, {"slug": "acme/x", "targets": [plain | OPTIONS]})).ok()
    assert endpoint["targets"] == [plain | OPTIONS]
    assert (await plane.get(f"{PATH}/{endpoint['id']}")).ok()["targets"] == [plain | OPTIONS]
    assert (await plane.patch(f"{PATH}/{endpoint['id']}", {"targets": [plain]})).ok()["targets"] == [plain]


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("upstream_state", "pass", "upstream_state"),
        ("upstream_state", ["PASS"], "upstream_state"),
        ("price_options", True, "price_options"),
        ("dialects", "MESSAGES", "dialects"),
        ("dialects", [], "dialects"),
        ("dialects", ["messages"], "dialects.0"),
        ("dialects", ["MESSAGES", "MESSAGES"], "dialects"),
        ("dialect", ["MESSAGES"], "dialect"),
    ],
)
async def test_an_option_with_another_value_is_400_and_named(
    sqlite_plane: ControlPlane, name: str, value: object, field: str
) -> None:
    target = {**await vendor_b(sqlite_plane), name: value}
    body = (await sqlite_plane.post(PATH, {"slug": "acme/x", "targets": [target]})).refused(400)
    assert [detail["field"] for detail in body["details"]] == [f"targets.0.{field}"]
