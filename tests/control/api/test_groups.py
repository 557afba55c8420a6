"""`/v1/gateway/groups` over HTTP, on both databases (docs/reference/management-api.md#groups)."""

import asyncio
from typing import Any

import pytest

from control.edges.sql.store import current_revision
from tests.control.plane import SLUG, ControlPlane, rate

PATH = "/v1/gateway/groups"
EXCEEDS = "Child group exceeds parent group limit."
Json = dict[str, Any]


def limits(entry: Json) -> set[tuple[str, str, int, str]]:
    entries = entry["rate_limits"] + entry["usage_limits"]
    return {(limit["type"], limit["unit"], limit["threshold"], limit["source_group"]) for limit in entries}


def in_flight(threshold: int, unit: str = "MINUTE") -> Json:
    """A rate limit of calls in flight."""
    return {"type": "CONCURRENT_REQUEST", "unit": unit, "threshold": threshold}


def day(threshold: int, type: str = "TOKEN", slug: str = SLUG) -> Json:
    return {"slug": slug, "usage_limits": [{"type": type, "unit": "DAY", "threshold": threshold}]}


async def test_a_group_is_created_read_changed_and_deleted(plane: ControlPlane) -> None:
    body = {"metadata": {"external_entity_id": "c-1", "name": "First"}, "models": [rate(10)]}
    group = (await plane.post(PATH, body)).ok()
    assert group["metadata"] == {"external_entity_id": "c-1", "name": "First"}
    assert group["hierarchy"] == {"limit_enforcement": "INDEPENDENT", "parent_group_id": None}
    assert group["models"] == [{**rate(10), "usage_limits": []}]
    assert limits(group["effective_models"][0]) == {("REQUEST", "MINUTE", 10, group["id"])}
    one = f"{PATH}/{group['id']}"
    assert (await plane.get(one)).ok() == group
    changed = (await plane.patch(one, {"models": [rate(20)], "metadata": {"name": None}})).ok()
    assert changed["metadata"] == {"external_entity_id": "c-1", "name": None}
    assert changed["updated_at"] > group["updated_at"]
    assert (await plane.patch(one, {"metadata": {"name": "Again"}})).ok()["models"] == changed["models"]
    assert (await plane.patch(one, {"models": []})).ok()["effective_models"] == []
    deletion = (await plane.delete(one)).ok()
    assert deletion.keys() == {"id", "parent_group_id", "metadata", "deleted_at", "deleted"}
    assert (deletion["id"], deletion["parent_group_id"], deletion["deleted"]) == (group["id"], None, True)
    for method in ("GET", "DELETE"):
        (await plane.call(method, one)).refused(404)
    (await plane.patch(one, {"models": []})).refused(404)
    assert (await plane.try_group("c-1")).status == 200, "the external id is free again"


async def test_an_independent_group_inherits_limits_it_does_not_set(plane: ControlPlane) -> None:
    root = await plane.group("root", models=[{**rate(100), **day(9)}])
    child = await plane.group("child", root["id"], models=[rate(500)])
    assert limits(child["effective_models"][0]) == {
        ("REQUEST", "MINUTE", 500, child["id"]),
        ("TOKEN", "DAY", 9, root["id"]),
    }


async def test_limits_of_all_ancestors_bind_a_cascading_group(plane: ControlPlane) -> None:
    root = await plane.group("root", models=[{**rate(100), **day(9)}], mode="CASCADING")
    child = await plane.group("child", root["id"], models=[rate(50)])
    assert child["hierarchy"] == {"limit_enforcement": "CASCADING", "parent_group_id": root["id"]}
    assert limits(child["effective_models"][0]) == {
        ("REQUEST", "MINUTE", 50, child["id"]),
        ("REQUEST", "MINUTE", 100, root["id"]),
        ("TOKEN", "DAY", 9, root["id"]),
    }
    listed = (await plane.get(PATH)).ok()["items"]
    assert listed == [root, child]


async def test_a_child_may_not_exceed_an_ancestor(plane: ControlPlane) -> None:
    """Holds for creating, raising the child and lowering the ancestor, across a level without its own limit."""
    root = await plane.group("root", models=[rate(100)], mode="CASCADING")
    middle = await plane.group("middle", root["id"])
    body = (await plane.try_group("above", middle["id"], models=[rate(101)])).refused(400)
    assert body["error"] == EXCEEDS
    leaf = await plane.group("leaf", middle["id"], models=[rate(100)])
    raised = await plane.patch(f"{PATH}/{leaf['id']}", {"models": [rate(101)]})
    assert raised.refused(400)["error"] == EXCEEDS
    lowered = await plane.patch(f"{PATH}/{root['id']}", {"models": [rate(99)]})
    assert lowered.refused(400)["error"] == EXCEEDS
    added = await plane.patch(f"{PATH}/{middle['id']}", {"models": [rate(99)]})
    assert added.refused(400)["error"] == EXCEEDS
    (await plane.patch(f"{PATH}/{root['id']}", {"models": [rate(100), rate(1, slug="acme/else")]})).ok()
    (await plane.patch(f"{PATH}/{leaf['id']}", {"models": [rate(101, unit="SECOND")]})).ok()
    (await plane.patch(f"{PATH}/{root['id']}", {"models": [rate(99)]})).ok()


async def test_the_unit_of_calls_in_flight_is_stored_and_compared_with_nothing(plane: ControlPlane) -> None:
    def limited(threshold: int, unit: str) -> Any:
        return {"slug": SLUG, "rate_limits": [in_flight(threshold, unit)]}

    root = await plane.group("root", models=[limited(10, "SECOND")], mode="CASCADING")
    assert (await plane.try_group("above", root["id"], models=[limited(11, "MINUTE")])).refused(400)["error"] == EXCEEDS
    child = await plane.group("child", root["id"], models=[limited(10, "MINUTE")])
    assert child["models"][0]["rate_limits"] == [in_flight(10, "MINUTE")]
    assert limits(child["effective_models"][0]) == {
        ("CONCURRENT_REQUEST", "MINUTE", 10, child["id"]),
        ("CONCURRENT_REQUEST", "SECOND", 10, root["id"]),
    }
    lowered = await plane.patch(f"{PATH}/{root['id']}", {"models": [limited(9, "MINUTE")]})
    assert lowered.refused(400)["error"] == EXCEEDS
    (await plane.patch(f"{PATH}/{root['id']}", {"models": [limited(10, "MINUTE")]})).ok()
    alone = await plane.group("alone", models=[limited(10, "SECOND")])
    heir = await plane.group("heir", alone["id"], models=[limited(20, "MINUTE")])
    assert limits(heir["effective_models"][0]) == {("CONCURRENT_REQUEST", "MINUTE", 20, heir["id"])}


async def test_an_independent_child_may_exceed_its_parent(plane: ControlPlane) -> None:
    root = await plane.group("root", models=[rate(100)])
    await plane.group("child", root["id"], models=[rate(1000)])
    (await plane.patch(f"{PATH}/{root['id']}", {"models": [rate(1)]})).ok()


@pytest.mark.parametrize("round", range(4))
async def test_concurrent_changes_never_leave_a_child_above_its_parent(plane: ControlPlane, round: int) -> None:
    """Lower the parent, raise a child and create a child concurrently: the rule holds whichever wins."""
    root = await plane.group("root", models=[rate(100)], mode="CASCADING")
    child = await plane.group("child", root["id"], models=[rate(10)])
    await asyncio.gather(
        plane.patch(f"{PATH}/{child['id']}", {"models": [rate(90 + round)]}),
        plane.patch(f"{PATH}/{root['id']}", {"models": [rate(50)]}),
        plane.try_group("second", root["id"], models=[rate(80)]),
        plane.try_group("third", child["id"], models=[rate(60)]),
    )
    groups = {group["id"]: group for group in (await plane.get(PATH)).ok()["items"]}
    for group in groups.values():
        parent = groups.get(group["hierarchy"]["parent_group_id"])
        if parent:
            threshold = group["models"][0]["rate_limits"][0]["threshold"]
            assert threshold <= parent["models"][0]["rate_limits"][0]["threshold"]


async def test_a_tree_has_at_most_five_levels(plane: ControlPlane) -> None:
    parent = None
    for level in range(5):
        parent = (await plane.group(f"g{level}", parent))["id"]
    body = (await plane.try_group("g5", parent)).refused(400)
    assert body["details"][0]["field"] == "hierarchy.parent_group_id"


async def test_the_mode_is_inherited_and_immutable(plane: ControlPlane) -> None:
    root = await plane.group("root", mode="CASCADING")
    body = (await plane.try_group("other", root["id"], mode="INDEPENDENT")).refused(400)
    assert body["details"][0]["field"] == "hierarchy.limit_enforcement"
    await plane.group("same", root["id"], mode="CASCADING")
    hierarchy = {"hierarchy": {"limit_enforcement": "INDEPENDENT"}}
    body = (await plane.patch(f"{PATH}/{root['id']}", {"models": [], **hierarchy})).refused(400)
    assert body["details"] == [{"field": "hierarchy", "message": "unknown field"}]


async def test_an_external_id_is_unique_in_its_workspace(plane: ControlPlane) -> None:
    answers = await asyncio.gather(*(plane.try_group("same") for _ in range(6)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 5
    key = (await plane.another_workspace())["api_key"]
    body = {"metadata": {"external_entity_id": "same"}, "models": [{"slug": "other/x"}]}
    (await plane.post(PATH, body, key=key)).ok()


async def test_groups_of_other_workspaces_are_404(plane: ControlPlane) -> None:
    group = await plane.group("mine")
    key = (await plane.another_workspace())["api_key"]
    one = f"{PATH}/{group['id']}"
    for method, path, body in (
        ("GET", one, None),
        ("PATCH", one, {"metadata": {"name": "x"}}),
        ("DELETE", one, None),
        ("POST", f"{one}/api_keys", {}),
        ("GET", f"{one}/api_keys", None),
        ("GET", f"{one}/api_keys/tg_000000000000", None),
        ("DELETE", f"{one}/api_keys/tg_000000000000", None),
    ):
        (await plane.call(method, path, body, key=key)).refused(404, "NOT_FOUND")
    child: Json = {"metadata": {"external_entity_id": "x"}, "models": [{"slug": "other/x"}]}
    body = {**child, "hierarchy": {"parent_group_id": group["id"]}}
    (await plane.post(PATH, body, key=key)).refused(404)
    assert (await plane.get(PATH, key=key)).ok()["items"] == []
    (await plane.get(one)).ok()


async def test_deleting_a_group_deletes_its_subtree_and_keys(plane: ControlPlane) -> None:
    root = await plane.group("root")
    beside = await plane.group("beside")
    child = await plane.group("child", root["id"])
    leaf = await plane.group("leaf", child["id"])
    keys = [(await plane.post(f"{PATH}/{id}/api_keys", {})).ok()["api_key"] for id in (root["id"], leaf["id"])]
    other_key = (await plane.post(f"{PATH}/{beside['id']}/api_keys", {})).ok()["api_key"]
    for key in (*keys, other_key):
        (await plane.get(PATH, key=key)).refused(403, "FEDERATED_KEY")
    (await plane.delete(f"{PATH}/{root['id']}")).ok()
    for key in keys:
        (await plane.get(PATH, key=key)).refused(403, "AUTHENTICATION_FAILED")
    (await plane.get(PATH, key=other_key)).refused(403, "FEDERATED_KEY")
    assert [group["id"] for group in (await plane.get(PATH)).ok()["items"]] == [beside["id"]]


async def test_minting_during_a_deletion_leaves_no_key(plane: ControlPlane) -> None:
    for number in range(5):
        group = await plane.group(f"g{number}")
        one = f"{PATH}/{group['id']}"
        minted, deleted, child = await asyncio.gather(
            plane.post(f"{one}/api_keys", {}), plane.delete(one), plane.try_group(f"c{number}", group["id"])
        )
        assert deleted.status == 200
        assert minted.status in (200, 404)
        assert child.status in (200, 404)
        if minted.status == 200:
            (await plane.get(PATH, key=minted.body["api_key"])).refused(403, "AUTHENTICATION_FAILED")


async def test_the_list_is_filtered_and_paged(plane: ControlPlane) -> None:
    groups = [await plane.group(f"g{number}") for number in range(5)]
    items = []
    url = f"{PATH}?limit=2"
    for _ in range(3):
        page = (await plane.get(url)).ok()
        items += page["items"]
        url = f"{PATH}?cursor={page['pagination']['cursor']}"
    assert items == groups
    assert page["pagination"] == {"has_more": False, "cursor": None}
    assert (await plane.get(f"{PATH}?external_entity_id=g3")).ok()["items"] == [groups[3]]
    assert (await plane.get(f"{PATH}?external_entity_id=none")).ok()["items"] == []


async def test_the_list_of_a_group_has_it_and_all_below_it(plane: ControlPlane) -> None:
    root = await plane.group("root")
    other = await plane.group("other")
    middle = await plane.group("middle", root["id"])
    leaf = await plane.group("leaf", middle["id"])
    first = (await plane.get(f"{PATH}?top_group_id={root['id']}&limit=2")).ok()
    rest = (await plane.get(f"{PATH}?cursor={first['pagination']['cursor']}")).ok()
    assert first["items"] + rest["items"] == [root, middle, leaf]
    assert (await plane.get(f"{PATH}?top_group_id={middle['id']}")).ok()["items"] == [middle, leaf]
    assert (await plane.get(f"{PATH}?top_group_id={other['id']}&external_entity_id=leaf")).ok()["items"] == []
    (await plane.get(f"{PATH}?top_group_id=grp_none")).refused(404)
    key = (await plane.another_workspace())["api_key"]
    (await plane.get(f"{PATH}?top_group_id={root['id']}", key=key)).refused(404)


async def test_the_list_leaves_out_what_is_inherited_where_nobody_asks_for_it(plane: ControlPlane) -> None:
    root = await plane.group("root", models=[rate(100)])
    await plane.group("child", root["id"], models=[day(5)])
    whole = (await plane.get(PATH)).ok()["items"]
    assert (await plane.get(f"{PATH}?effective_models=false")).ok()["items"] == [
        item | {"effective_models": []} for item in whole
    ]
    (await plane.get(f"{PATH}?effective_models=no")).refused(400)
    (await plane.get(f"{PATH}?usage=yes")).refused(400)


@pytest.mark.parametrize(
    ("models", "field"),
    [
        ([], "models"),
        ([{"slug": "other/x"}], "models.0.slug"),
        ([{"slug": SLUG}, {"slug": SLUG}], "models.1.slug"),
        ([{"slug": SLUG}, {"slug": "acme/y", "limits": []}], "models.1.limits"),
        ([rate(-1)], "models.0.rate_limits.0.threshold"),
        ([rate(2**53)], "models.0.rate_limits.0.threshold"),
        ([rate(10**400)], "models.0.rate_limits.0.threshold"),
        ([rate(1, unit="DAY")], "models.0.rate_limits.0.unit"),
        ([rate(1, type="BYTE")], "models.0.rate_limits.0.type"),
        (
            [{"slug": SLUG, "rate_limits": rate(1)["rate_limits"] + rate(2, unit="SECOND")["rate_limits"]}],
            "models.0",
        ),
        ([{"slug": SLUG, "usage_limits": rate(1)["rate_limits"]}], "models.0.usage_limits.0.unit"),
        (
            [{"slug": SLUG, "rate_limits": [in_flight(1), in_flight(2, unit="SECOND")]}],
            "models.0",
        ),
        ([{"slug": SLUG, "usage_limits": [in_flight(1, unit="DAY")]}], "models.0.usage_limits.0.type"),
        ([rate("5")], "models.0.rate_limits.0.threshold"),
        ([rate(True)], "models.0.rate_limits.0.threshold"),
        ([rate(1.5)], "models.0.rate_limits.0.threshold"),
        ("acme/chat", "models"),
        (None, "models"),
    ],
)
async def test_invalid_models_are_400_and_name_the_field(sqlite_plane: ControlPlane, models: Any, field: str) -> None:
    body = (await sqlite_plane.try_group("x", models=models)).refused(400, "INVALID_REQUEST")
    assert [detail["field"] for detail in body["details"]] == [field]


@pytest.mark.parametrize(
    "body", [{}, {"models": None}, {"metadata": None}, {"metadata": {}}, {"metadata": {"external_entity_id": "x"}}, []]
)
async def test_an_empty_or_invalid_patch_is_400(sqlite_plane: ControlPlane, body: Any) -> None:
    group = await sqlite_plane.group("x")
    (await sqlite_plane.patch(f"{PATH}/{group['id']}", body)).refused(400, "INVALID_REQUEST")


async def test_a_null_member_counts_as_absent(sqlite_plane: ControlPlane) -> None:
    entry = {"slug": SLUG, "rate_limits": None, "usage_limits": None}
    body = {"metadata": {"external_entity_id": "n", "name": None}, "models": [entry], "hierarchy": None}
    group = (await sqlite_plane.post(PATH, body)).ok()
    assert (group["models"], group["hierarchy"]["parent_group_id"]) == (
        [{"slug": SLUG, "rate_limits": [], "usage_limits": []}],
        None,
    )
    one = f"{PATH}/{group['id']}"
    update = (await sqlite_plane.patch(one, {"models": None, "metadata": {"name": "N"}})).ok()
    assert (update["models"], update["metadata"]["name"]) == (group["models"], "N")
    limited = (await sqlite_plane.patch(one, {"models": [rate(5)], "metadata": None})).ok()
    assert (limited["models"][0]["rate_limits"][0]["threshold"], limited["metadata"]["name"]) == (5, "N")
    (await sqlite_plane.patch(one, {"models": None, "metadata": None})).refused(400, "INVALID_REQUEST")


@pytest.mark.parametrize("entity", ["", "x" * 256, None, 7, "nul\0"])
async def test_external_ids_have_1_to_255_characters(sqlite_plane: ControlPlane, entity: Any) -> None:
    (await sqlite_plane.try_group(entity)).refused(400, "INVALID_REQUEST")


async def test_one_limit_of_each_type_and_list_is_allowed(sqlite_plane: ControlPlane) -> None:
    entry = {
        "slug": SLUG,
        "rate_limits": [
            {"type": "TOKEN", "unit": "MINUTE", "threshold": 2**53 - 1},
            {"type": "REQUEST", "unit": "SECOND", "threshold": 1.0},
        ],
        "usage_limits": [{"type": kind, "unit": "DAY", "threshold": 5} for kind in ("TOKEN", "REQUEST")],
    }
    assert len(limits((await sqlite_plane.group("x", models=[entry]))["effective_models"][0])) == 4


async def test_a_slug_named_twice_in_models_is_refused(plane: ControlPlane) -> None:
    body = {"metadata": {"external_entity_id": "twice"}, "models": [{"slug": SLUG}, {"slug": SLUG}]}
    refusal = (await plane.call("POST", "/v1/gateway/groups", body)).refused(400, "INVALID_REQUEST")
    assert refusal["details"] == [{"field": "models.1.slug", "message": f"{SLUG} is named twice in models"}]


async def test_a_refused_limit_names_the_group_and_what_would_pass(plane: ControlPlane) -> None:
    """Name the one of several that leaves least; what `maximum` and `minimum` say passes."""
    root = await plane.group("root", models=[rate(100)], mode="CASCADING")
    middle = await plane.group("middle", root["id"], models=[rate(60)])
    await plane.group("small", middle["id"], models=[rate(20)])
    large = await plane.group("large", middle["id"], models=[rate(40)])

    above = await plane.try_group("above", middle["id"], models=[rate(1, slug="acme/else"), rate(101)])
    (detail,) = above.refused(400, "CHILD_EXCEEDS_PARENT_LIMIT", "models.1.rate_limits.0.threshold")["details"]
    conflict = {"slug": SLUG, "type": "REQUEST", "unit": "MINUTE", "currency": None, "name": None}
    neighbour = {"group_id": middle["id"], "external_entity_id": "middle", "threshold": 60}
    assert detail["conflict"] == conflict | neighbour | {"minimum": None, "maximum": 60}
    assert detail["message"] == (
        f"{SLUG} REQUEST per MINUTE: 101 is above the 60 of middle, a group above this one. Choose at most 60, or raise"
        " it there first"
    )
    (await plane.try_group("above", middle["id"], models=[rate(60)])).ok()
    (await plane.patch(f"{PATH}/{large['id']}", {"models": [rate(60)]})).ok()

    below = await plane.patch(f"{PATH}/{middle['id']}", {"models": [rate(59)]})
    (detail,) = below.refused(400)["details"]
    neighbour = {"group_id": large["id"], "external_entity_id": "large", "threshold": 60}
    assert detail["conflict"] == conflict | neighbour | {"minimum": 60, "maximum": None}
    assert detail["message"] == (
        f"{SLUG} REQUEST per MINUTE: 59 is below the 60 of large, a group below this one. Choose at least 60, or lower"
        " it there first"
    )
    (await plane.patch(f"{PATH}/{middle['id']}", {"models": [rate(60)]})).ok()


async def test_both_directions_and_every_limit_are_explained_at_once(plane: ControlPlane) -> None:
    def limited(requests: int, in_day: int) -> Json:
        day = {"type": "TOKEN", "unit": "DAY", "threshold": in_day}
        return {**rate(requests), "usage_limits": [day]}

    root = await plane.group("root", models=[limited(100, 1000)], mode="CASCADING")
    middle = await plane.group("middle", root["id"], models=[limited(50, 500)])
    await plane.group("leaf", middle["id"], models=[limited(10, 400)])
    answer = await plane.patch(f"{PATH}/{middle['id']}", {"models": [limited(101, 399)]})
    details = answer.refused(400)["details"]
    assert [(one["field"], one["conflict"]["maximum"], one["conflict"]["minimum"]) for one in details] == [
        ("models.0.rate_limits.0.threshold", 100, None),
        ("models.0.usage_limits.0.threshold", None, 400),
    ]


async def test_another_workspaces_group_is_never_named(plane: ControlPlane) -> None:
    """A parent of another workspace does not exist, whatever its limits are."""
    root = await plane.group("theirs", models=[rate(1)], mode="CASCADING")
    other = (await plane.another_workspace())["api_key"]
    entry = rate(9, slug="other/chat")
    hierarchy = {"parent_group_id": root["id"]}
    body = {"metadata": {"external_entity_id": "mine"}, "models": [entry], "hierarchy": hierarchy}
    refused = (await plane.call("POST", PATH, body, key=other)).refused(404)
    assert "details" not in refused
    assert "theirs" not in str(refused)


async def test_a_dry_run_checks_as_a_write_does_and_saves_nothing(plane: ControlPlane) -> None:
    root = await plane.group("root", models=[rate(100)], mode="CASCADING")
    body = {"metadata": {"external_entity_id": "kid"}, "models": [rate(101)]}
    body["hierarchy"] = {"parent_group_id": root["id"]}
    async with plane.store.read() as conn:
        revision = await current_revision(conn)
    path = f"{PATH}/{root['id']}?dry_run=true"
    refused = (await plane.post(f"{PATH}?dry_run=true", body)).refused(400, "CHILD_EXCEEDS_PARENT_LIMIT")
    assert refused["details"][0]["conflict"]["maximum"] == 100
    tried = (await plane.post(f"{PATH}?dry_run=true", {**body, "models": [rate(100)]})).ok()
    assert limits(tried["effective_models"][0]) >= {("REQUEST", "MINUTE", 100, root["id"])}
    root_body = {"metadata": {"external_entity_id": "root"}, "models": [rate(1)]}
    (await plane.post(f"{PATH}?dry_run=true", root_body)).refused(409)
    changed = (await plane.patch(path, {"models": [rate(7)]})).ok()
    assert limits(changed["effective_models"][0]) == {("REQUEST", "MINUTE", 7, root["id"])}
    (await plane.patch(path, {"models": [{"slug": "foreign/chat"}]})).refused(400)
    (await plane.patch(f"{path}x", {"models": []})).refused(400, field="dry_run")
    assert (await plane.get(PATH)).ok()["items"] == [root]
    async with plane.store.read() as conn:
        assert await current_revision(conn) == revision
    actions = [event["action"] for event in (await plane.get("/v1/audit_events")).ok()["items"]]
    assert actions.count("group.create") == 1
    assert "group.update" not in actions
