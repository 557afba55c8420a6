"""Large workspaces: what they cost to write and read, and what `export` writes."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from commands.errors import ManagementError
from commands.policy_file.document import read_document, read_value
from commands.policy_file.export import export_value
from commands.policy_file.values import Group, OwnedResource, Workspace
from commands.policy_file.yaml_text import MAX_CHARS, parse_yaml, yaml_of
from policy.limits.groups import Enforcement
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from tests.proxy.growth.work import check_grows_linearly

MOST_CALLS_PER_GROUP = 155
HEAD = "version: 1\nname: a\n"


def workspace(groups: int) -> Workspace:
    """Trees of three levels, a hundred groups each, whose groups have limits."""
    limits = (Limit(LimitType.REQUEST, Unit.MINUTE, 1000),), (Limit(LimitType.TOKEN, Unit.DAY, 10_000_000),)
    models = (SlugLimits("acme/chat", *limits), SlugLimits("acme/small"))
    by_id: dict[str, OwnedResource[Group]] = {}
    for number in range(groups):
        root = number - number % 100
        place = number % 100
        parent = None if place == 0 else f"g{root}" if place < 10 else f"g{root + 1 + place % 9}"
        group = Group(f"g{number}", f"Group {number}", Enforcement.CASCADING, parent, models)
        by_id[group.external_entity_id] = OwnedResource(f"grp_{number}", group)
    return Workspace(groups=by_id)


def test_work_of_an_export_grows_with_the_groups() -> None:
    def prepare(groups: int) -> Any:
        of = workspace(groups)
        return lambda: yaml_of(export_value(of, "policy")[0])

    check_grows_linearly(prepare)


def test_work_of_reading_a_file_grows_with_its_groups() -> None:
    def prepare(groups: int) -> Any:
        text = yaml_of(export_value(workspace(groups), "policy")[0])
        return lambda: read_document(text)

    check_grows_linearly(prepare)


def test_export_of_a_group_takes_few_calls() -> None:
    """20 000 groups are exported within ten seconds."""
    of = workspace(1_000)

    def export() -> None:
        value, _ = export_value(of, "policy")
        read_value(value)
        yaml_of(value)

    export()  # what is kept for all of them
    calls = python_calls_of(export) / 1_000
    assert calls <= MOST_CALLS_PER_GROUP, calls


def python_calls_of(act: Callable[[], object]) -> int:
    """The number of Python functions that `act` calls."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def test_file_of_more_than_16_million_characters_is_read_and_its_problems_have_lines() -> None:
    text = HEAD + "# a comment\n" * 1_500_000
    assert read_document(text).name == "a"
    with pytest.raises(ManagementError, match=r"line 1500003: groups\.0\.external_entity_id: must be text"):
        read_document(text + "groups: [{external_entity_id: 1}]\n")


def test_file_beyond_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(ManagementError, match=f"more than {MAX_CHARS} characters"):
        parse_yaml(" " * (MAX_CHARS + 1))


def test_export_writes_limits_in_one_line() -> None:
    assert yaml_of(export_value(workspace(2), "policy")[0]).splitlines()[2:14] == [
        "groups:",
        "  - external_entity_id: g0",
        "    name: Group 0",
        "    limit_enforcement: CASCADING",
        "    models:",
        "      - slug: acme/chat",
        "        rate_limits: [{type: REQUEST, unit: MINUTE, threshold: 1000}]",
        "        usage_limits: [{type: TOKEN, unit: DAY, threshold: 10000000}]",
        "      - slug: acme/small",
        "    groups:",
        "      - external_entity_id: g1",
        "        name: Group 1",
    ]


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
    st.sampled_from(
        ["", "no", "On", "null", "~", "1.5", "0x1f", "2026-11-24", "a: b", "a #b", "- a", " a", "a ", "&a"]
    ),
)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(-(2**53), 2**53), st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(st.dictionaries(TEXTS, inner, max_size=3), max_size=3),
        st.dictionaries(TEXTS, inner, max_size=3),
    ),
    max_leaves=12,
)


@given(document=st.dictionaries(TEXTS, VALUES, max_size=4))
def test_every_reader_of_yaml_reads_what_was_written(document: dict[str, Any]) -> None:
    text = yaml_of(document) if document else "{}"
    assert parse_yaml(text).value == document
    assert yaml.safe_load(text) == document
