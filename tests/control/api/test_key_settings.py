"""Settings of federated keys, on both databases (docs/reference/management-api.md#settings-of-a-key)."""

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import select, update

from control.edges.sql.spend.tables import older_spend_proxies
from control.edges.sql.store import WriteTx, now_ms
from control.edges.sql.tables import api_keys, published
from control.records.times import time_text
from policy.credentials import digest_of, registered_prefix
from policy.keys.settings import KeySettings
from policy.limits.kinds import KINDS
from policy.snapshot import KeyRow
from policy.spend.levels import POLICY_LEVEL, PolicyLevel
from tests.control.api.test_keys import NOTHING_SET, OWN_KEY
from tests.control.plane import SLUG, TOKEN, Answer, ControlPlane, Json

GROUPS = "/v1/gateway/groups"
ALL = "/v1/gateway/api_keys"
OTHER_SLUG = "acme/other"
DAY_MS = 86_400_000
HOUR_S = 3600
RATES = [
    {"type": "REQUEST", "unit": "MINUTE", "threshold": 10},
    {"type": "CONCURRENT_REQUEST", "unit": "SECOND", "threshold": 2},
]
SPEND = [{"unit": "DAY", "amount": "2.50", "currency": "EUR", "enforcement": "HARD"}]


def in_days(days: float) -> str:
    return time_text(now_ms() + int(days * DAY_MS))


def all_settings() -> Json:
    """One of each, as the API shows it."""
    return {
        "expires_at": in_days(7),
        "allowed_ips": ["203.0.113.0/24", "2001:db8::/32"],
        "slugs": [SLUG],
        "rate_limits": RATES,
        "spend_limits": SPEND,
    }


async def keys_of_group(plane: ControlPlane, entity: str = "customer", **more: Any) -> str:
    """Create a group that may call two slugs, and return the path of its keys."""
    models = more.pop("models", [{"slug": SLUG}, {"slug": OTHER_SLUG}])
    return f"{GROUPS}/{(await plane.group(entity, models=models, **more))['id']}/api_keys"


async def minted(plane: ControlPlane, path: str, **settings: Any) -> Json:
    return (await plane.post(path, settings)).ok()  # type: ignore[no-any-return]  # JSON


async def published_row(plane: ControlPlane, key: str) -> KeyRow:
    async with plane.store.read() as conn:
        body = (await conn.execute(select(published.c.body).where(published.c.id == digest_of(key)))).scalar_one()
    return KeyRow.from_wire(digest_of(key), json.loads(body))


async def expire(plane: ControlPlane, prefix: str) -> None:
    """Put the key's end into the past."""

    async def work(tx: WriteTx) -> None:
        change = update(api_keys).where(api_keys.c.prefix == prefix)
        await tx.conn.execute(change.values(expires_at_ms=tx.now_ms - 1))

    await plane.store.transact(work)


async def test_settings_are_saved_shown_everywhere_and_published(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    settings = all_settings()
    key = await minted(plane, path, name="ci", **settings)
    assert {name: key[name] for name in settings} == settings
    assert (key["state"], key["disabled"], key["replaced_by"]) == ("ACTIVE", False, None)
    item = {name: value for name, value in key.items() if name != "api_key"}
    assert (await plane.get(f"{path}/{key['prefix']}")).ok() == item
    assert (await plane.get(path)).ok()["items"] == [item]
    (listed, of_workspace) = (await plane.get(ALL)).ok()["items"]
    assert {name: listed[name] for name in NOTHING_SET} == {name: item[name] for name in NOTHING_SET}
    assert {name: of_workspace[name] for name in NOTHING_SET} == NOTHING_SET
    row = await published_row(plane, key["api_key"])
    assert row.settings is not None
    assert time_text(row.settings.expires_at_ms or 0) == settings["expires_at"]
    assert (row.settings.allowed_ips, row.settings.slugs) == (tuple(settings["allowed_ips"]), (SLUG,))
    assert [limit.threshold for limit in row.settings.rate_limits] == [10, 2]
    assert [limit.currency for limit in row.settings.spend_limits] == ["EUR"]


async def test_a_key_on_which_nothing_is_set_is_published_as_before(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    nothing = dict.fromkeys(("expires_at", "allowed_ips", "slugs", "rate_limits", "spend_limits"))
    keys = [await minted(plane, path), await minted(plane, path, **nothing), await minted(plane, path, rate_limits=[])]
    for key in keys:
        async with plane.store.read() as conn:
            query = select(published.c.body).where(published.c.id == digest_of(key["api_key"]))
            body = json.loads((await conn.execute(query)).scalar_one())
        assert body.keys() == {"prefix", "kind", "workspace_id", "group_id"}


async def test_a_patch_changes_what_it_names_and_null_resets(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    settings = all_settings()
    key = await minted(plane, path, name="ci", **settings)
    one = f"{path}/{key['prefix']}"
    changed = (await plane.patch(one, {"disabled": True})).ok()
    assert (changed["state"], changed["disabled"], changed["name"]) == ("DISABLED", True, "ci")
    assert {name: changed[name] for name in settings} == settings
    row = await published_row(plane, key["api_key"])
    assert row.settings is not None
    assert row.settings.disabled
    renamed = (await plane.patch(one, {"name": None, "slugs": [OTHER_SLUG], "disabled": None})).ok()
    assert (renamed["name"], renamed["slugs"], renamed["state"]) == (None, [OTHER_SLUG], "ACTIVE")
    for name in settings:
        reset = (await plane.patch(one, {name: None})).ok()
        assert reset[name] == NOTHING_SET[name]
    assert (await plane.get(one)).ok() == {**reset, **NOTHING_SET}
    assert (await published_row(plane, key["api_key"])).settings is None


async def test_each_change_moves_the_revision_that_proxies_ask_for(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    key = await minted(plane, path)
    one = f"{path}/{key['prefix']}"
    feed = f"/internal/v1/snapshot?limit_kinds={len(KINDS)}&spend_limits={POLICY_LEVEL.value}"
    before = (await plane.get(feed, key=TOKEN)).ok()["revision"]
    (await plane.patch(one, {"expires_at": in_days(1)})).ok()
    changed = (await plane.get(feed, key=TOKEN)).ok()["revision"]
    assert changed == before + 1
    (await plane.patch(one, {"disabled": False})).ok()
    assert (await plane.get(feed, key=TOKEN)).ok()["revision"] == changed, "nothing has changed"


LATEST = "9999-12-31T23:59:59Z"
WRONG: dict[str, tuple[Json, str, str]] = {
    "an end in the past": ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at", "in the future; to end a key now"),
    "an end as a number": ({"expires_at": 1_900_000_000_000}, "expires_at", "ISO 8601"),
    "a time that does not exist": ({"expires_at": "2030-02-30T00:00:00Z"}, "expires_at", "exists"),
    "a date": ({"expires_at": "2030-02-01"}, "expires_at", "ISO 8601"),
    "an end that is true": ({"expires_at": True}, "expires_at", "ISO 8601"),
    "bits of a host": ({"allowed_ips": ["10.0.0.0/8", "10.1.2.3/8"]}, "allowed_ips.1", "write 10.0.0.0/8"),
    "an IPv4-mapped network": ({"allowed_ips": ["::ffff:10.0.0.0/104"]}, "allowed_ips.0", "write 10.0.0.0/8"),
    "an IPv4-mapped address": ({"allowed_ips": ["::ffff:192.0.2.1"]}, "allowed_ips.0", "write 192.0.2.1/32"),
    "a zone": ({"allowed_ips": ["fe80::1%eth0"]}, "allowed_ips.0", "no zone"),
    "a mask": ({"allowed_ips": ["10.0.0.0/255.0.0.0"]}, "allowed_ips.0", "CIDR"),
    "a name": ({"allowed_ips": ["office.example"]}, "allowed_ips.0", "CIDR"),
    "no text": ({"allowed_ips": [167772160]}, "allowed_ips.0", "string"),
    "no network": ({"allowed_ips": []}, "allowed_ips", "at least 1"),
    "too many networks": ({"allowed_ips": [f"10.0.0.{n}" for n in range(101)]}, "allowed_ips", "at most 100"),
    "a long network": ({"allowed_ips": ["1" * 65]}, "allowed_ips.0", "at most 64"),
    "a slug of another group": ({"slugs": [SLUG, "acme/secret"]}, "slugs.1", "may not call acme/secret"),
    "a slug twice": ({"slugs": [SLUG, SLUG]}, "slugs.1", "named twice"),
    "no slug": ({"slugs": []}, "slugs", "at least 1"),
    "too many slugs": ({"slugs": [f"acme/{n}" for n in range(501)]}, "slugs", "at most 500"),
    "two limits of a type": ({"rate_limits": [RATES[0], RATES[0]]}, "rate_limits", "at most one rate limit per type"),
    "a limit per day": ({"rate_limits": [{**RATES[0], "unit": "DAY"}]}, "rate_limits.0.unit", "MINUTE"),
    "a limit of a slug": ({"rate_limits": [{**RATES[0], "slug": SLUG}]}, "rate_limits.0.slug", "unknown"),
    "two spend limits of a unit": ({"spend_limits": SPEND * 2}, "spend_limits", "one spend limit per unit"),
    "usage limits": ({"usage_limits": []}, "usage_limits", "unknown"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_settings_are_refused_by_field(sqlite_plane: ControlPlane, name: str) -> None:
    settings, field, message = WRONG[name]
    path = await keys_of_group(sqlite_plane)
    one = f"{path}/{(await minted(sqlite_plane, path, name='before'))['prefix']}"
    before = (await sqlite_plane.get(one)).ok()
    answers = [
        await sqlite_plane.post(path, settings),
        await sqlite_plane.post(f"{path}/register", {"key": OWN_KEY, **settings}),
        await sqlite_plane.patch(one, settings),
    ]
    for answer in answers:
        refused = answer.refused(400, "INVALID_REQUEST", field)
        assert message.lower() in refused["details"][0]["message"].lower()
    assert (await sqlite_plane.get(path)).ok()["items"] == [before]


async def test_other_rubbish_is_refused(sqlite_plane: ControlPlane) -> None:
    path = await keys_of_group(sqlite_plane)
    one = f"{path}/{(await minted(sqlite_plane, path))['prefix']}"
    rubbish: list[tuple[Json, str | None]] = [({}, None), ({"disabled": "yes"}, "disabled"), ({"key": OWN_KEY}, "key")]
    for body, field in rubbish:
        (await sqlite_plane.patch(one, body)).refused(400, field=field)
    (await sqlite_plane.post(path, {"disabled": True})).refused(400, field="disabled")
    for overlap in (-1, 604_801, 1.5, "60", None, True):
        (await sqlite_plane.post(f"{one}/rotate", {"overlap_seconds": overlap})).refused(400, field="overlap_seconds")
    (await sqlite_plane.post(f"{one}/rotate", {})).refused(400, field="overlap_seconds")


async def test_networks_are_shown_in_one_spelling(sqlite_plane: ControlPlane) -> None:
    path = await keys_of_group(sqlite_plane)
    spellings = ["192.0.2.7", "2001:DB8:0:0::/48", "192.0.2.7/32", "::/0", "2001:0db8::1", "0.0.0.0/0"]
    key = await minted(sqlite_plane, path, allowed_ips=spellings)
    assert key["allowed_ips"] == ["192.0.2.7/32", "2001:db8::/48", "::/0", "2001:db8::1/128", "0.0.0.0/0"]


async def test_the_last_time_that_can_be_written_is_an_end(sqlite_plane: ControlPlane) -> None:
    path = await keys_of_group(sqlite_plane)
    assert (await minted(sqlite_plane, path, expires_at=LATEST))["expires_at"] == "9999-12-31T23:59:59.000Z"
    berlin = await minted(sqlite_plane, path, expires_at="2999-01-01T01:00:00.9999+01:00")
    assert berlin["expires_at"] == "2999-01-01T00:00:00.999Z"


async def test_an_expired_key_is_shown_as_such_and_may_be_extended(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    key = await minted(plane, path, expires_at=in_days(1))
    one = f"{path}/{key['prefix']}"
    await expire(plane, key["prefix"])
    expired = (await plane.get(one)).ok()
    assert expired["state"] == "EXPIRED"
    assert (await plane.patch(one, {"disabled": True})).ok()["state"] == "EXPIRED", "to enable it would not revive it"
    (await plane.patch(one, {"expires_at": expired["expires_at"], "disabled": False})).ok()
    (await plane.patch(one, {"expires_at": "2021-01-01T00:00:00Z"})).refused(400, field="expires_at")
    extended = (await plane.patch(one, {"expires_at": in_days(2)})).ok()
    assert extended["state"] == "ACTIVE"
    row = await published_row(plane, key["api_key"])
    assert row.settings is not None
    assert row.settings == KeySettings(row.settings.expires_at_ms)
    assert (row.settings.expires_at_ms or 0) > now_ms()


async def test_a_slug_that_the_group_loses_stays_named_and_forbids_no_other_change(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    key = await minted(plane, path, slugs=[SLUG, OTHER_SLUG])
    one = f"{path}/{key['prefix']}"
    (await plane.patch(path.removesuffix("/api_keys"), {"models": [{"slug": SLUG}]})).ok()
    assert (await plane.patch(one, {"name": "x"})).ok()["slugs"] == [SLUG, OTHER_SLUG]
    (await plane.patch(one, {"slugs": [OTHER_SLUG]})).refused(400, field="slugs.0")
    (await plane.patch(path.removesuffix("/api_keys"), {"models": []})).ok()
    row = await published_row(plane, key["api_key"])
    assert row.settings is not None
    assert row.settings.slugs == (SLUG, OTHER_SLUG), "None would be all slugs that the group has next"


async def test_settings_of_a_registered_key(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    settings = all_settings()
    (await plane.post(f"{path}/register", {"key": OWN_KEY, **settings})).ok()
    one = f"{path}/{registered_prefix(OWN_KEY)}"
    item = (await plane.get(one)).ok()
    assert {name: item[name] for name in settings} == settings
    assert (await plane.patch(one, {"disabled": True})).ok()["state"] == "DISABLED"
    assert (await published_row(plane, OWN_KEY)).settings is not None


# One currency per tree.


async def test_a_keys_spend_limits_have_the_currency_of_the_tree(plane: ControlPlane) -> None:
    root = await plane.group("root", spend_limits=SPEND)
    path = await keys_of_group(plane, "child", parent=root["id"])
    dollars = [{**SPEND[0], "currency": "USD"}]
    refused = (await plane.post(path, {"spend_limits": dollars})).refused(409, "CONFLICT")
    assert f"those of group {root['id']} are in EUR; use EUR" in refused["error"]
    key = await minted(plane, path, spend_limits=[{**SPEND[0], "amount": "1000"}])
    assert key["spend_limits"][0]["amount"] == "1000.00", "more than the group's is allowed, and binds nothing"
    one = f"{path}/{key['prefix']}"
    (await plane.patch(f"{GROUPS}/{root['id']}", {"spend_limits": []})).ok()
    refused = (await plane.patch(f"{GROUPS}/{root['id']}", {"spend_limits": dollars})).refused(409)
    assert f"those of key {key['prefix']} are in EUR" in refused["error"]
    credit = {"amount": "1", "currency": "USD", "reference": "r"}
    refused = (await plane.post(f"{GROUPS}/{root['id']}/balance/credits", credit)).refused(409)
    assert refused["error"].startswith("currency: ")
    refused = (await plane.post(path, {"spend_limits": dollars})).refused(409)
    assert f"those of key {key['prefix']} are in EUR" in refused["error"]
    assert (await plane.patch(one, {"spend_limits": dollars})).ok()["spend_limits"] == [
        {**dollars[0], "amount": "2.50"}
    ], "its own ones are replaced"
    (await plane.post(f"{GROUPS}/{root['id']}/balance/credits", credit)).ok()
    (await plane.patch(one, {"spend_limits": SPEND})).refused(409)
    other = await keys_of_group(plane, "elsewhere")
    await minted(plane, other, spend_limits=SPEND)
    (await plane.delete(one)).ok()
    (await plane.patch(one, {"spend_limits": None})).refused(404)


async def test_a_key_and_its_group_cannot_get_two_currencies_at_once(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    group = path.removesuffix("/api_keys")
    dollars = [{**SPEND[0], "currency": "USD"}]
    statuses = [
        answer.status
        for answer in await asyncio.gather(
            *(plane.post(path, {"spend_limits": SPEND}) for _ in range(3)),
            *(plane.patch(group, {"spend_limits": dollars}) for _ in range(3)),
        )
    ]
    assert set(statuses) == {200, 409}
    limits = (await plane.get(group)).ok()["spend_limits"]
    currencies = [key["spend_limits"][0]["currency"] for key in (await plane.get(path)).ok()["items"]]
    assert {*currencies, *(limit["currency"] for limit in limits)} in ({"EUR"}, {"USD"})


# Whose keys.


async def test_another_workspaces_and_another_groups_keys_are_not_found(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    key = await minted(plane, path)
    elsewhere = await keys_of_group(plane, "elsewhere")
    other = (await plane.another_workspace())["api_key"]
    rotation = {"overlap_seconds": 60}
    for base, caller in ((elsewhere, plane.key), (path, other), (f"{GROUPS}/grp_none/api_keys", plane.key)):
        one = f"{base}/{key['prefix']}"
        answers = [
            await plane.patch(one, {"disabled": True}, key=caller),
            await plane.post(f"{one}/rotate", rotation, key=caller),
        ]
        for answer in answers:
            answer.refused(404, "NOT_FOUND")
    (await plane.post(path, all_settings(), key=other)).refused(404)
    for body in (all_settings(), {}):
        (await plane.post(path, body, key=key["api_key"])).refused(403, "FEDERATED_KEY")
    (await plane.patch(f"{path}/{key['prefix']}", {"expires_at": None}, key=key["api_key"])).refused(403)
    (await plane.post(f"{path}/{key['prefix']}/rotate", rotation, key=key["api_key"])).refused(403)
    for prefix in ("tg_none", "%00", "..%2f", plane.key.partition(".")[0]):
        (await plane.patch(f"{path}/{prefix}", {"disabled": True})).refused(404)
    assert (await plane.get(f"{path}/{key['prefix']}")).ok()["state"] == "ACTIVE"


# Rotation.


async def rotated(plane: ControlPlane, path: str, prefix: str, overlap_s: int = HOUR_S) -> Json:
    return (await plane.post(f"{path}/{prefix}/rotate", {"overlap_seconds": overlap_s})).ok()  # type: ignore[no-any-return]  # JSON


async def test_a_rotated_key_has_the_settings_and_counters_of_the_old_one(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    settings = all_settings()
    old = await minted(plane, path, name="ci", **settings)
    before_ms = now_ms()
    new = await rotated(plane, path, old["prefix"])
    assert {name: new[name] for name in ("name", *settings)} == {"name": "ci", **settings}
    assert new["api_key"].startswith(f"{new['prefix']}.")
    assert new["api_key"] != old["api_key"]
    item = (await plane.get(f"{path}/{old['prefix']}")).ok()
    assert (item["state"], item["replaced_by"]) == ("REPLACED", new["prefix"])
    assert new["replaces"] == {"prefix": old["prefix"], "expires_at": item["expires_at"]}
    assert time_text(before_ms + HOUR_S * 1000) <= item["expires_at"] <= time_text(now_ms() + HOUR_S * 1000)
    assert {name: item[name] for name in settings if name != "expires_at"} == {
        name: settings[name] for name in settings if name != "expires_at"
    }
    rows = [await published_row(plane, key["api_key"]) for key in (old, new)]
    assert [row.bucket for row in rows] == [None, old["prefix"]]
    newest = await rotated(plane, path, new["prefix"], 0)
    assert (await published_row(plane, newest["api_key"])).bucket == old["prefix"], (
        "the first key's, not the last one's"
    )
    assert (await plane.get(f"{path}/{new['prefix']}")).ok()["state"] == "EXPIRED", "at once"


async def test_an_overlap_does_not_outlast_the_old_keys_own_end(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    end = in_days(0.01)
    old = await minted(plane, path, expires_at=end)
    new = await rotated(plane, path, old["prefix"], 604_800)
    assert (new["expires_at"], new["replaces"]["expires_at"]) == (end, end)


async def test_a_key_without_settings_gets_only_its_end(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    old = await minted(plane, path)
    new = await rotated(plane, path, old["prefix"])
    assert {name: new[name] for name in NOTHING_SET} == NOTHING_SET
    assert (await published_row(plane, new["api_key"])).settings is None
    row = await published_row(plane, old["api_key"])
    assert row.settings is not None
    assert row.settings == KeySettings(row.settings.expires_at_ms)


async def test_a_registered_key_is_rotated_to_a_minted_one(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    (await plane.post(f"{path}/register", {"key": OWN_KEY, "name": "mine", "rate_limits": RATES})).ok()
    prefix = registered_prefix(OWN_KEY)
    new = await rotated(plane, path, prefix)
    assert (new["prefix"][:3], new["name"], new["rate_limits"]) == ("tg_", "mine", RATES)
    assert (await published_row(plane, new["api_key"])).bucket == prefix


async def test_only_an_active_key_is_rotated(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    key = await minted(plane, path, expires_at=in_days(1))
    one = f"{path}/{key['prefix']}"
    rotation = {"overlap_seconds": 60}
    (await plane.patch(one, {"disabled": True})).ok()
    assert "it is disabled; enable it" in (await plane.post(f"{one}/rotate", rotation)).refused(409)["error"]
    (await plane.patch(one, {"disabled": False})).ok()
    new = await rotated(plane, path, key["prefix"])
    refused = (await plane.post(f"{one}/rotate", rotation)).refused(409, "CONFLICT")
    assert f"{new['prefix']} has replaced it already; rotate that one" in refused["error"]
    await expire(plane, new["prefix"])
    refused = (await plane.post(f"{path}/{new['prefix']}/rotate", rotation)).refused(409)
    assert "it has expired" in refused["error"]
    assert len((await plane.get(path)).ok()["items"]) == 2


async def test_of_rotations_at_the_same_time_one_is_made(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    key = await minted(plane, path)
    body = {"overlap_seconds": 60}
    answers = await asyncio.gather(*(plane.post(f"{path}/{key['prefix']}/rotate", body) for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409, 409]
    assert len((await plane.get(path)).ok()["items"]) == 2


async def test_changes_at_the_same_time_lose_nothing(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    one = f"{path}/{(await minted(plane, path))['prefix']}"
    settings = all_settings() | {"disabled": True, "name": "n"}
    answers: list[Answer] = await asyncio.gather(*(plane.patch(one, {name: settings[name]}) for name in settings))
    for answer in answers:
        answer.ok()
    item = (await plane.get(one)).ok()
    assert {name: item[name] for name in settings} == settings


async def test_either_key_of_a_rotation_is_revoked_alone(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    old = await minted(plane, path)
    new = await rotated(plane, path, old["prefix"])
    (await plane.delete(f"{path}/{new['prefix']}")).ok()
    assert (await plane.get(f"{path}/{old['prefix']}")).ok()["state"] == "REPLACED"
    again = await rotated(plane, path, old["prefix"])
    assert again["expires_at"] == (await plane.get(f"{path}/{old['prefix']}")).ok()["expires_at"]
    (await plane.delete(f"{path}/{old['prefix']}")).ok()
    (item,) = (await plane.get(path)).ok()["items"]
    assert (item["prefix"], item["state"]) == (again["prefix"], "ACTIVE")
    assert (await published_row(plane, again["api_key"])).bucket == old["prefix"], "its counters stay"


async def test_a_replaced_key_must_end_but_may_end_later(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    old = await minted(plane, path)
    await rotated(plane, path, old["prefix"])
    one = f"{path}/{old['prefix']}"
    (await plane.patch(one, {"expires_at": None})).refused(400, field="expires_at")
    assert (await plane.patch(one, {"expires_at": in_days(30)})).ok()["state"] == "REPLACED"


async def test_deleting_the_group_revokes_all_keys_of_a_rotation(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    old = await minted(plane, path, spend_limits=SPEND)
    new = await rotated(plane, path, old["prefix"])
    (await plane.delete(path.removesuffix("/api_keys"))).ok()
    async with plane.store.read() as conn:
        for key in (old, new):
            query = select(published.c.body).where(published.c.id == digest_of(key["api_key"]))
            assert (await conn.execute(query)).scalar_one() is None


# The audit trail.


async def test_changes_and_rotations_are_in_the_trail_without_a_key(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    key = await minted(plane, path, slugs=[SLUG])
    one = f"{path}/{key['prefix']}"
    before = (await plane.get(one)).ok()
    changed = (await plane.patch(one, {"slugs": None})).ok()
    new = await rotated(plane, path, key["prefix"])
    replaced = (await plane.get(one)).ok()
    events = (await plane.get("/v1/audit_events")).ok()["items"]
    resource = f"groups/{path.split('/')[4]}/api_keys/{key['prefix']}"
    entries = [(event["action"], event["before"], event["after"]) for event in events if event["resource"] == resource]
    assert entries == [
        ("key.rotate", changed, replaced),
        ("key.update", before, changed),
        ("key.mint", None, before),
    ]
    assert replaced["replaced_by"] == new["prefix"]
    text = json.dumps(events)
    for plaintext in (key["api_key"], new["api_key"]):
        assert plaintext.partition(".")[2] not in text
        assert digest_of(plaintext) not in text


# Proxies of an older version.

OLDER = f"/internal/v1/snapshot?limit_kinds={len(KINDS)}&spend_limits={PolicyLevel.BALANCES.value}"


async def test_settings_are_refused_while_a_proxy_asks_that_ignores_them(plane: ControlPlane) -> None:
    path = await keys_of_group(plane)
    key = await minted(plane, path, slugs=[SLUG])
    one = f"{path}/{key['prefix']}"
    (await plane.get(OLDER, key=TOKEN)).ok()
    changes = [{"slugs": [OTHER_SLUG]}, {"disabled": True}, {"expires_at": in_days(1)}, {"allowed_ips": ["10.0.0.1"]}]
    answers = [await plane.patch(one, change) for change in changes]
    answers += [await plane.post(path, {"rate_limits": RATES})]
    answers += [await plane.post(f"{path}/register", {"key": OWN_KEY, "slugs": [SLUG]})]
    answers += [await plane.post(f"{one}/rotate", {"overlap_seconds": 0})]
    for answer in answers:
        assert "does not know settings of keys. Update all proxies" in answer.refused(409, "CONFLICT")["error"]
    await minted(plane, path)
    (await plane.patch(one, {"name": "x"})).ok()
    (await plane.patch(one, {"slugs": None})).ok()

    async def age(tx: WriteTx) -> None:
        await tx.conn.execute(update(older_spend_proxies).values(asked_at_ms=tx.now_ms - DAY_MS - 1))

    await plane.store.transact(age)
    (await plane.patch(one, {"disabled": True})).ok()


async def test_a_proxy_of_this_version_is_not_an_older_one(plane: ControlPlane) -> None:
    own = f"/internal/v1/snapshot?limit_kinds={len(KINDS)}&spend_limits={POLICY_LEVEL.value}"
    (await plane.get(own, key=TOKEN)).ok()
    (await plane.get(own.replace("spend_limits=", "spend_limits=1"), key=TOKEN)).ok()  # of a newer version
    await minted(plane, await keys_of_group(plane), **all_settings())
