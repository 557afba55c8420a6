"""The tree of groups: its drawing, bars and JSON."""

from typing import Any

import pytest

from commands.group_tree.tree import bar, roots_of, tree_json, tree_text

DAY = {"type": "REQUEST", "unit": "DAY", "threshold": 100}
USED = {
    "slug": "a/b",
    "type": "REQUEST",
    "unit": "DAY",
    "threshold": 100,
    "current_usage": 42,
    "source_group": "grp_root",
}


def group(external_id: str, parent: str | None = None, enforcement: str = "CASCADING", **more: Any) -> dict[str, Any]:
    hierarchy = {"limit_enforcement": enforcement, "parent_group_id": f"grp_{parent}" if parent else None}
    models = [{"slug": "a/b", "rate_limits": [], "usage_limits": [] if parent else [DAY]}]
    names = {"external_entity_id": external_id, "name": None}
    item = {"id": f"grp_{external_id}", "metadata": names, "models": models, "hierarchy": hierarchy, "usage": []}
    return item | more


GROUPS = [
    group("leaf", "kid", usage=None),
    group("root", usage=[USED]),
    group("kid", "root", usage=[USED]),
    group("alone", enforcement="INDEPENDENT"),
]


def test_tree_shows_limits_and_usage_of_each_group() -> None:
    assert tree_text(roots_of(GROUPS)).splitlines() == [
        "alone  grp_alone",
        "    a/b  100 REQUEST/DAY",
        "root  grp_root  CASCADING",
        "│   a/b  100 REQUEST/DAY",
        "│     ████████░░░░░░░░░░░░  42%  42 of 100 REQUEST today",
        "└─ kid  grp_kid  CASCADING",
        "   │   a/b  no limits of its own",
        "   │     ████████░░░░░░░░░░░░  42%  42 of 100 REQUEST today  set by grp_root",
        "   └─ leaf  grp_leaf  CASCADING",
        "          a/b  no limits of its own",
        "          usage is not known",
    ]


def test_tree_shows_the_spend_limits_that_a_group_sets() -> None:
    daily = {"unit": "DAY", "amount": "100.00", "currency": "EUR", "enforcement": "SOFT"}
    assert tree_text(roots_of([group("root", spend_limits=[daily])])).splitlines()[1:] == [
        "    spend  100.00 EUR/DAY SOFT",
        "    a/b  100 REQUEST/DAY",
    ]


def totals(calls: int, **cost: str) -> dict[str, Any]:
    return {"calls": calls, "cost": cost or None, "unpriced_calls": 0 if cost else calls}


def test_tree_shows_own_calls_and_those_with_groups_below() -> None:
    whole = totals(5, EUR="1.50", USD="0.25") | {"own": totals(2, EUR="0.50")}
    groups = [
        group("root", today=whole),
        group("kid", "root", today=totals(3) | {"own": totals(3)}),
        group("idle", "root", today=None),
        group("gone-below", today=totals(3, EUR="1.00") | {"own": totals(0)}),
    ]
    assert [line for line in tree_text(roots_of(groups)).splitlines() if "today" in line] == [
        "    0 calls today, with groups below 3 calls, 1.00 EUR",
        "│   2 calls, 0.50 EUR today, with groups below 5 calls, 1.50 EUR, 0.25 USD",
        "│      no calls today",
        "       3 calls, 3 of them unpriced today",
    ]
    assert tree_json(roots_of(groups))[1]["today"] == whole


def test_tree_as_json_nests_the_groups_as_the_api_shows_them() -> None:
    _alone, root = tree_json(roots_of(GROUPS))
    assert (root["id"], root["usage"]) == ("grp_root", [USED])
    (kid,) = root["children"]
    assert [child["usage"] for child in kid["children"]] == [None]


def test_group_whose_parent_was_not_listed_is_a_root() -> None:
    """The parent was created while the list was read."""
    assert [node.group["id"] for node in roots_of([group("kid", "gone")])] == ["grp_kid"]


@pytest.mark.parametrize(("usage", "full"), [(0, 0), (1, 1), (500, 10), (999, 19), (1000, 20), (5000, 20)])
def test_bar_is_full_only_at_its_limit_and_empty_only_unused(usage: int, full: int) -> None:
    assert bar(usage, 1000).count("█") == full
    assert len(bar(usage, 1000)) == 20
