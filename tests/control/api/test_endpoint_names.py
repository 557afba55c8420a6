"""Aliases of providers, and regions, over HTTP (docs/reference/management-api.md#targets)."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from control.edges.sql.tables import endpoints
from policy.endpoints import PROVIDER_NAMES, PROVIDERS, provider_names
from policy.snapshot import target_from_wire
from tests.control.api.test_endpoints import PATH, filled
from tests.control.plane import TOKEN, ControlPlane, running_plane

ALIASES = [name for name in PROVIDER_NAMES if name not in PROVIDERS]
URL = "sqlite+aiosqlite:///{}"


async def written_with(plane: ControlPlane, alias: str) -> dict[str, Any]:
    one = PROVIDER_NAMES[alias]
    return one.written(await filled(plane, one.provider))


async def published(plane: ControlPlane) -> list[Any]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with plane.client.get("/internal/v1/snapshot", headers=headers) as answer:
        rows = (await answer.json())["rows"]
    return [row[3]["target"] for row in rows if row[0] == "endpoint" and row[3]]


@pytest.mark.parametrize("alias", ALIASES)
async def test_target_written_with_an_alias_is_answered_with_it(sqlite_plane: ControlPlane, alias: str) -> None:
    target = await written_with(sqlite_plane, alias)
    endpoint = (await sqlite_plane.post(PATH, {"slug": "acme/x", "targets": [target]})).ok()
    assert endpoint["targets"] == [target]
    assert (await sqlite_plane.get(f"{PATH}/{endpoint['id']}")).ok() == endpoint
    assert (await sqlite_plane.get(PATH)).ok()["items"] == [endpoint]
    for name in target.keys() - {"provider"}:
        less = {field: value for field, value in target.items() if field != name}
        body = (await sqlite_plane.post(PATH, {"slug": "acme/y", "targets": [less]})).refused(400)
        assert body["details"] == [{"field": f"targets.0.{name}", "message": "required"}]


async def test_the_last_written_name_is_answered_and_proxies_get_the_providers_own(plane: ControlPlane) -> None:
    alias = await written_with(plane, "VERTEX")
    own = PROVIDER_NAMES["VERTEX"].own(alias)
    endpoint = (await plane.post(PATH, {"slug": "acme/x", "targets": [alias]})).ok()
    for target in (alias, own, alias):
        changed = (await plane.patch(f"{PATH}/{endpoint['id']}", {"targets": [target]})).ok()
        assert changed["targets"] == [target]
        assert await published(plane) == [own]
    async with plane.store.read() as conn:
        stored = (await conn.execute(select(endpoints.c.target))).scalar_one()
    assert '"alias":"VERTEX"' in stored


async def test_faults_beside_an_alias_name_the_field_as_it_was_written(sqlite_plane: ControlPlane) -> None:
    target = await written_with(sqlite_plane, "VERTEX")
    for field, value in (("location", "a.b"), ("project_id", "")):
        wrong = {**target, "vertex_config": {**target["vertex_config"], field: value}}
        body = (await sqlite_plane.post(PATH, {"slug": "acme/x", "targets": [wrong]})).refused(400)
        assert [detail["field"] for detail in body["details"]] == [f"targets.0.vertex_config.{field}"]
    mixed = {**target, "vendor_c_config": target["vertex_config"]}
    body = (await sqlite_plane.post(PATH, {"slug": "acme/x", "targets": [mixed]})).refused(400)
    assert body["details"] == [{"field": "targets.0.vendor_c_config", "message": "unknown field"}]


@pytest.mark.parametrize(("name", "says"), [("XAI", "use OPENAI_COMPATIBLE"), ("VENDOR_D", "must be one of PLATFORM")])
async def test_a_provider_that_is_none_is_400_and_says_what_to_write(
    sqlite_plane: ControlPlane, name: str, says: str
) -> None:
    target = {**await written_with(sqlite_plane, "OPENAI"), "provider": name}
    body = (await sqlite_plane.post(PATH, {"slug": "acme/x", "targets": [target]})).refused(400)
    (detail,) = body["details"]
    assert detail["field"] == "targets.0.provider"
    assert says in detail["message"]


async def test_unknown_members_in_capitals_are_named(sqlite_plane: ControlPlane) -> None:
    """Providers' names in the places of faults are left out; nothing else is."""
    target = {**await written_with(sqlite_plane, "OPENAI"), "NEW": 1}
    body = (await sqlite_plane.post(PATH, {"slug": "acme/x", "targets": [target]})).refused(400)
    assert body["details"] == [{"field": "targets.0.NEW", "message": "unknown field"}]


async def test_aliases_of_the_setting_are_accepted_answered_and_described(tmp_path: Path) -> None:
    names = provider_names("HOUSE=PLATFORM, HOUSE_API=PLATFORM_MODEL_API")
    async with running_plane(URL.format(tmp_path / "control.db"), provider_names=names) as plane:
        for alias in ("HOUSE", "HOUSE_API"):
            target = names[alias].written(await filled(plane, names[alias].provider))
            endpoint = (await plane.post(PATH, {"slug": f"acme/{alias}", "targets": [target]})).ok()
            assert endpoint["targets"] == [target]
            wrong = {**target, "base_url": "https://example.com"}
            body = (await plane.patch(f"{PATH}/{endpoint['id']}", {"targets": [wrong]})).refused(400)
            assert body["details"] == [{"field": "targets.0.base_url", "message": "unknown field"}]
        assert {target["provider"] for target in await published(plane)} == {"PLATFORM", "PLATFORM_MODEL_API"}
        unknown = {**target, "provider": "OTHER"}
        body = (await plane.post(PATH, {"slug": "acme/z", "targets": [unknown]})).refused(400)
        assert "HOUSE_API" in body["details"][0]["message"]
        assert "HOUSE_API" in str((await plane.get("/v1/openapi.json")).body)
        rows = (await plane.get("/console/tables.json")).body["providers"]
        assert {name: one.provider for name, one in names.items()} == {row["name"]: row["provider"] for row in rows}


async def test_an_alias_that_the_setting_has_no_more_is_still_shown(tmp_path: Path) -> None:
    url = URL.format(tmp_path / "control.db")
    async with running_plane(url, provider_names=provider_names("HOUSE=PLATFORM")) as plane:
        target = {**await filled(plane, "PLATFORM"), "provider": "HOUSE"}
        endpoint = (await plane.post(PATH, {"slug": "acme/x", "targets": [target]})).ok()
        key = plane.key
    async with running_plane(url, "other") as plane:
        assert (await plane.get(f"{PATH}/{endpoint['id']}", key=key)).ok() == endpoint


async def test_a_stored_alias_is_no_part_of_the_target(sqlite_plane: ControlPlane) -> None:
    """Control of the version before reads the row, too."""
    target = await written_with(sqlite_plane, "ANTHROPIC")
    assert target_from_wire({**target, "provider": "VENDOR_A", "alias": "ANTHROPIC"}).provider == "VENDOR_A"


async def test_region_is_unrestricted_by_default_and_never_changes(plane: ControlPlane) -> None:
    target = await written_with(plane, "OPENAI")
    bodies: list[dict[str, Any]] = [{}, {"region": None}, {"region": "UNRESTRICTED"}]
    for number, more in enumerate(bodies):
        endpoint = (await plane.post(PATH, {"slug": f"acme/r{number}", "targets": [target], **more})).ok()
        assert endpoint["region"] == "UNRESTRICTED"
    one = f"{PATH}/{endpoint['id']}"
    for more in bodies:
        assert (await plane.patch(one, {"targets": [target], **more})).ok()["region"] == "UNRESTRICTED"
    body = (await plane.patch(one, {"targets": [target], "region": "EU"})).refused(400)
    assert body["details"][0]["field"] == "region"
    assert "cannot change" in body["error"]


async def test_only_regions_of_the_setting_can_be_named(tmp_path: Path) -> None:
    url = URL.format(tmp_path / "control.db")
    async with running_plane(url, regions=("EU", "US")) as plane:
        target = await written_with(plane, "OPENAI")
        assert (await plane.get("/console/tables.json")).body["regions"] == ["UNRESTRICTED", "EU", "US"]
        endpoint = (await plane.post(PATH, {"slug": "acme/x", "region": "EU", "targets": [target]})).ok()
        assert endpoint["region"] == "EU"
        for region in ("eu", "", "ASIA"):
            body = (await plane.post(PATH, {"slug": "acme/y", "region": region, "targets": [target]})).refused(400)
            assert body["details"][0]["field"] == "region"
            assert "UNRESTRICTED, EU, US" in body["error"]
            assert "TOLLGATE_REGIONS" in body["error"]
        key = plane.key
    async with running_plane(url, "other") as plane:
        one = f"{PATH}/{endpoint['id']}"
        assert (await plane.get(one, key=key)).ok()["region"] == "EU"
        assert (await plane.call("PATCH", one, {"targets": [target], "region": "EU"}, key=key)).ok()["region"] == "EU"
        (await plane.call("PATCH", one, {"targets": [target], "region": "US"}, key=key)).refused(400)
