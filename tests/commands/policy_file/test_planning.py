"""Checks who may change what, and in which order limits of a CASCADING tree change."""

import asyncio

import pytest

from commands.policy_file.planning import Consent, Plan
from commands.policy_file.rendering import plan_text
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


def in_flight(threshold: int, unit: str) -> Item:
    return {"type": "CONCURRENT_REQUEST", "unit": unit, "threshold": threshold}


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
        # Calls in flight are compared whatever their units, which change too.
        (
            tree([in_flight(9, "MINUTE")], [in_flight(5, "SECOND")]),
            tree([in_flight(3, "SECOND")], [in_flight(2, "MINUTE")]),
        ),
    ],
)
def test_awkward_changes_of_a_tree_are_legal_at_every_step(before: str, after: str) -> None:
    async def run() -> Plan:
        api = await applied(before)
        await apply_text(api, after, NOTHING, {})
        return (await plan_of(api, after, NOTHING, {}))[0]

    assert asyncio.run(run()).changes == ()


def spend(amount: str, unit: str = "DAY", currency: str = "EUR") -> Item:
    return {"unit": unit, "amount": amount, "currency": currency}


def spend_tree(root: list[Item], kid: list[Item], enforcement: str = "CASCADING") -> str:
    groups = [
        {"external_entity_id": "root", "limit_enforcement": enforcement, "models": models([]), "spend_limits": root},
        {"external_entity_id": "kid", "parent": "root", "models": models([]), "spend_limits": kid},
    ]
    return text_of({"version": 1, "name": MINE, "groups": groups})


def steps_between(before: str, after: str) -> list[str]:
    """Return what is done, after it was checked that each step is legal and that nothing is left to do."""

    async def run() -> list[str]:
        api = await applied(before)
        plan, workspace = await plan_of(api, after, NOTHING, {})
        steps = [f"{step.does} {step.key}" for step in steps_of(plan, workspace)]
        await apply_text(api, after, NOTHING, {})
        assert (await plan_of(api, after, NOTHING, {}))[0].changes == ()
        return steps

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [
        (("100", "50"), ("20", "10"), ["tighten kid", "tighten root"]),
        (("20", "10"), ("100", "50"), ["update root", "update kid"]),
        (("20", "10"), ("20.00", "10.000"), []),
    ],
)
def test_amounts_fall_from_the_leaves_and_rise_from_the_root(
    before: tuple[str, str], after: tuple[str, str], order: list[str]
) -> None:
    first, second = (spend_tree([spend(root)], [spend(kid)]) for root, kid in (before, after))
    assert steps_between(first, second) == order


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [
        # The kid drops its limit of a day while its root gets a lower one.
        (
            spend_tree([spend("9", "MONTH")], [spend("5")]),
            spend_tree([spend("2")], [spend("5", "MONTH")]),
            ["tighten kid", "tighten root", "update root", "update kid"],
        ),
        # Nothing else binds amounts of INDEPENDENT groups: each changes at once.
        (
            spend_tree([spend("9")], [spend("20")], "INDEPENDENT"),
            spend_tree([spend("3")], [spend("30")], "INDEPENDENT"),
            ["update root", "update kid"],
        ),
        # Another currency: first no limits, from the leaves up.
        (
            spend_tree([spend("9")], [spend("20")], "INDEPENDENT"),
            spend_tree([spend("9", currency="USD")], [spend("20", currency="USD")], "INDEPENDENT"),
            ["tighten kid", "tighten root", "update root", "update kid"],
        ),
        (
            text_of({"version": 1, "name": MINE, "groups": [{"external_entity_id": "a", "models": models([]),
                                                             "spend_limits": [spend("1")]}]}),
            text_of({"version": 1, "name": MINE, "groups": [{"external_entity_id": "a", "models": models([]),
                                                             "spend_limits": [spend("1", currency="USD")]}]}),
            ["update a"],
        ),
    ],
)  # fmt: skip
def test_awkward_changes_of_spend_limits_are_legal_at_every_step(before: str, after: str, order: list[str]) -> None:
    assert steps_between(before, after) == order


def test_spend_limits_that_control_would_refuse_are_refused_with_the_plan() -> None:
    async def refusals(text: str) -> tuple[str, ...]:
        return (await plan_of(await applied(spend_tree([spend("9")], [spend("5")])), text, NOTHING, {}))[0].refusals

    assert asyncio.run(refusals(spend_tree([spend("9")], [spend("9.5")]))) == (
        "group kid: spend per DAY 9.50 exceeds 9.00 of root, a group above it; choose at most 9.00, or raise it there",
    )
    kid = {"external_entity_id": "kid", "parent": "root", "models": models([])}
    other = kid | {"spend_limits": [spend("1", "MONTH", "USD")]}
    assert asyncio.run(refusals(text_of({"version": 1, "name": MINE, "groups": [other]}))) == (
        "group root: all spend limits and balances of a group tree have one currency, not EUR and USD",
    )


def test_reviewer_sees_amount_currency_and_mode_of_spend_limits() -> None:
    async def run() -> str:
        api = await applied(spend_tree([spend("9")], []))
        plan, workspace = await plan_of(api, spend_tree([spend("12.5")], [spend("3", "MONTH")]), NOTHING, {})
        return plan_text(plan, steps_of(plan, workspace))

    lines = asyncio.run(run()).splitlines()
    assert lines[:4] == [
        "~ group root",
        "    spend per DAY: 9.00 EUR SOFT \N{RIGHTWARDS ARROW} 12.50 EUR SOFT",
        "~ group kid",
        "    spend per MONTH: 3.00 EUR SOFT",
    ]
