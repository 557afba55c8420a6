"""Limits of kinds that a proxy of an older version does not know are not stored while one has asked within a day."""

import pytest
from sqlalchemy import update

from control.edges.sql.store import WriteTx
from control.edges.sql.tables import older_proxies
from policy.limits.kinds import KINDS
from tests.control.plane import SLUG, TOKEN, ControlPlane, Json

DAY_MS = 86_400_000
FEED = "/internal/v1/snapshot"
OLDER = ""
OWN = f"?limit_kinds={len(KINDS)}"
KNOWN = {"slug": SLUG, "usage_limits": [{"type": "TOKEN", "unit": "DAY", "threshold": 0}]}


def limited(type: str, unit: str) -> Json:
    name = "usage_limits" if unit in ("DAY", "MONTH") else "rate_limits"
    return {"slug": SLUG, name: [{"type": type, "unit": unit, "threshold": 5}]}


async def ask(plane: ControlPlane, query: str) -> None:
    (await plane.get(FEED + query, key=TOKEN)).ok()


NEW = [
    ("OUTPUT_TOKEN", "MINUTE"),
    ("UNCACHED_INPUT_TOKEN", "DAY"),
    ("TOKEN", "MONTH"),
    ("CONCURRENT_REQUEST", "SECOND"),
]


@pytest.mark.parametrize(("type", "unit"), NEW)
async def test_a_kind_that_an_older_proxy_does_not_know_is_refused(plane: ControlPlane, type: str, unit: str) -> None:
    group = await plane.group("before", models=[KNOWN])
    await ask(plane, OLDER)
    await ask(plane, OWN)
    refused = await plane.try_group("after", models=[KNOWN, limited(type, unit) | {"slug": "acme/other"}])
    assert refused.status == 409
    assert f"limits of {type} per {unit}. Update all proxies" in refused.body["error"]
    path = f"/v1/gateway/groups/{group['id']}"
    assert (await plane.patch(path, {"models": [limited(type, unit)]})).status == 409
    assert (await plane.patch(path, {"models": [KNOWN]})).status == 200, "what it knows"


async def test_all_kinds_are_stored_where_all_proxies_know_them(plane: ControlPlane) -> None:
    await ask(plane, OWN)
    group = await plane.group("one", models=[limited("OUTPUT_TOKEN", "MINUTE")])
    assert group["models"][0]["rate_limits"] == limited("OUTPUT_TOKEN", "MINUTE")["rate_limits"]


async def test_an_older_proxy_counts_for_a_day(plane: ControlPlane) -> None:
    await ask(plane, OLDER)

    async def age(tx: WriteTx) -> None:
        await tx.conn.execute(update(older_proxies).values(asked_at_ms=tx.now_ms - DAY_MS - 1))

    await plane.store.transact(age)
    await plane.group("one", models=[limited("REQUEST", "MONTH")])
