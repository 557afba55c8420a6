"""Checks who may change what, and in which order limits of a CASCADING tree change."""

import asyncio

import pytest

from commands.policy_file.planning import Consent, Plan
from commands.policy_file.steps import steps_of
from tests.commands.policy_file.workspaces import ALL, MINE, Item, apply_text, plan_of, text_of
from tests.fakes.workspace_api import WorkspaceApi

NOTHING = Consent()


def tree(root: list[Item], kid: list[Item], name: str = MINE) -> str:
    groups = [
        {"external_entity_id": "root", "limit_enforcement": "CASCADING", "models": models(root)},
        {"external_entity_id": "kid", "parent": "root", "models": models(kid)},
    ]
    return text_of({"version": 1, "name": name, "groups": groups})


def models(limits: list[Item]) -> list[Item]:
    return [{"slug": "acme/a", "rate_limits": limits}]


def requests(threshold: int, unit: str = "MINUTE") -> Item:
    return {"type": "REQUEST", "unit": unit, "threshold": threshold}


def tokens(threshold: int) -> Item:
    return {"type": "TOKEN", "unit": "MINUTE", "threshold": threshold}


BEFORE = tree([requests(100)], [requests(50)])
AFTER = tree([requests(100)], [requests(40)])


async def applied(text: str, owner: str | None = MINE, *, drifted: bool = False) -> WorkspaceApi:
    api = WorkspaceApi()
    await apply_text(api, text, NOTHING, {})
    for key, item in api.items["groups"].items():
        item["owner"] = owner
        if drifted:
            api.write("groups", key)
    return api


def plan_after(text: str, consent: Consent, owner: str | None = MINE, *, drifted: bool = False) -> Plan:
    async def run() -> Plan:
        return (await plan_of(await applied(BEFORE, owner, drifted=drifted), text, consent, {}))[0]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("owner", "drifted", "consent", "refusal"),
    [
        (MINE, False, NOTHING, None),
        (MINE, True, NOTHING, "--overwrite-drift overwrites"),
        (MINE, True, Consent(prune=True, adopt=True), "--overwrite-drift overwrites"),
        (MINE, True, Consent(overwrite_drift=True), None),
        (None, False, Consent(prune=True, overwrite_drift=True), "--adopt takes it over"),
        (None, False, Consent(adopt=True), None),
        ("other", False, ALL, "owned by other"),
    ],
)
def test_a_different_group_is_changed_only_with_consent(
    owner: str | None, drifted: bool, consent: Consent, refusal: str | None
) -> None:
    plan = plan_after(AFTER, consent, owner, drifted=drifted)
    assert bool(plan.refusals) == (refusal is not None)
    assert refusal is None or any(refusal in text for text in plan.refusals)
    assert ("kid" in [change.key for change in plan.changes]) == (refusal is None)


def test_what_left_the_file_is_pruned_only_with_consent() -> None:
    empty = text_of({"version": 1, "name": MINE})
    assert plan_after(empty, NOTHING).changes == ()
    assert {change.key for change in plan_after(empty, Consent(prune=True)).changes} == {"root", "kid"}
    assert plan_after(empty, Consent(prune=True), drifted=True).refusals
    assert plan_after(empty, ALL, None).changes == plan_after(empty, ALL, "other").changes == ()


def test_a_group_above_one_that_stays_is_not_pruned() -> None:
    async def run() -> Plan:
        api = await applied(BEFORE)
        next(item for item in api.items["groups"].values() if item["group"].parent_id)["owner"] = "other"
        return (await plan_of(api, text_of({"version": 1, "name": MINE}), ALL, {}))[0]

    assert asyncio.run(run()).refusals == ("group root: group kid below it stays; it cannot be deleted without it",)


def test_a_group_above_a_new_one_is_not_pruned() -> None:
    below = {"external_entity_id": "new", "parent": "kid", "models": models([])}
    plan = plan_after(text_of({"version": 1, "name": MINE, "groups": [below]}), ALL)
    assert plan.refusals == ("group kid: group new below it stays; it cannot be deleted without it",)


def test_place_and_enforcement_cannot_change() -> None:
    moved = text_of(
        {"version": 1, "name": MINE, "groups": [{"external_entity_id": "kid"}, {"external_entity_id": "root"}]}
    )
    refusals = plan_after(moved, ALL).refusals
    assert ["parent is root" in refusals[0], "limit_enforcement is CASCADING" in refusals[1]] == [True, True]


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [
        ((100, 50), (20, 10), ["tighten kid", "tighten root"]),
        ((20, 10), (100, 50), ["update root", "update kid"]),
        ((20, 10), (20, 15), ["update kid"]),
    ],
)
def test_limits_fall_from_the_leaves_and_rise_from_the_root(
    before: tuple[int, int], after: tuple[int, int], order: list[str]
) -> None:
    async def run() -> list[str]:
        api = await applied(tree([requests(before[0])], [requests(before[1])]))
        plan, workspace = await plan_of(api, tree([requests(after[0])], [requests(after[1])]), NOTHING, {})
        return [f"{step.does} {step.key}" for step in steps_of(plan, workspace)]

    assert asyncio.run(run()) == order


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The kid drops a limit while its parent gets a lower one: the least of the kid's own is not enough.
        (tree([requests(100)], [requests(50), tokens(40)]), tree([requests(100), tokens(10)], [requests(50)])),
        # The unit changes: there is one limit per type, so both cannot stand between the phases.
        (tree([requests(100)], [requests(50)]), tree([requests(5, "SECOND")], [requests(3, "SECOND")])),
    ],
)
def test_awkward_changes_of_a_tree_are_legal_at_every_step(before: str, after: str) -> None:
    async def run() -> Plan:
        api = await applied(before)
        await apply_text(api, after, NOTHING, {})
        return (await plan_of(api, after, NOTHING, {}))[0]

    assert asyncio.run(run()).changes == ()
