"""Checks what policy files may say, and what the errors of others say."""

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no annotations
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.policy_file.document import read_document
from commands.policy_file.errors import PolicyFileError
from commands.policy_file.schema import SCHEMA
from commands.policy_file.schema_check import problems_of
from commands.policy_file.yaml_text import MAX_DEPTH, parse_yaml
from control.operator.cli import tollgate
from tests.commands.policy_file.workspaces import Item, policies, text_of

HEAD = "version: 1\nname: production\n"
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
DAILY = "{unit: DAY, amount: 1.50, currency: EUR}"
GROUP = HEAD + "groups:\n  - external_entity_id: a\n"


def problems(text: str) -> str:
    with pytest.raises(PolicyFileError) as raised:
        read_document(text)
    assert len(str(raised.value).splitlines()) <= 3
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty"),
        ("- 1\n", "line 1: the file: must be a mapping"),
        ("version: 2\nname: a\n", "line 1: version: must be 1"),
        (HEAD + "name: b\n", "line 3: 'name' is given twice"),
        (HEAD + "groups: &a []\nwebhooks: *a\n", "line 4: aliases"),
        (HEAD + "groups: !!python/object:os.system []\n", "line 3: tags"),
        (HEAD + "---\nversion: 1\n", "line 3: one document per file"),
        (HEAD + "groups: [\n", "line 4: "),
        (HEAD + "groups: " + "[" * 5000, f"nested deeper than {MAX_DEPTH} levels"),
        (HEAD + "group: []\n", "line 3: group: unknown; known are version, name"),
        (HEAD + "groups:\n  - external_entity_id: 42\n", "line 4: groups.0.external_entity_id: must be text; put"),
        (GROUP + "    parent: a\n", "no group is below itself"),
        (GROUP + "  - external_entity_id: a\n", "line 5: groups.1.external_entity_id: a is given twice"),
        (HEAD + 'groups: [{external_entity_id: "a\\nb\\nc"}, {external_entity_id: "a\\nb\\nc"}]\n', "given twice"),
        (
            GROUP + "    models: [{slug: acme/a}, {slug: acme/a}]\n",
            "line 5: groups.0.models.1.slug: acme/a is named twice",
        ),
        (GROUP + "    models: [{slug: acme}]\n", "line 5: groups.0.models.0.slug: must match"),
        (GROUP + "    groups: [{external_entity_id: b, parent: a}]\n", "groups.0.groups.0.parent: unknown"),
        (GROUP + "    spend_limits: [{unit: DAY, amount: 0.0}]\n", "groups.0.spend_limits.0: currency is missing"),
        (GROUP + "    spend_limits: [{unit: HOUR}]\n", "spend_limits.0.unit: must be one of DAY, MONTH"),
        (GROUP + "    spend_limits: [{enforcement: FIRM}]\n", "spend_limits.0.enforcement: must be one of SOFT"),
        (GROUP + f"    spend_limits: [{DAILY}, {DAILY}]\n", "line 5: groups.0.spend_limits: at most one spend limit"),
        (GROUP + "    spend_limits: [{amount: 1e3}]\n", "spend_limits.0.amount: must match"),
        (HEAD + "secrets: [{name: a, value: b}]\n", "line 3: secrets.0.value: unknown"),
        (HEAD + "secrets: [{name: a, value_from: {env: TOLLGATE_API_KEY}}]\n", "secrets.0.value_from.env: must match"),
        (HEAD + "endpoints: [{slug: acme/a, target: {provider: VENDOR_B}}]\n", "VENDOR_B needs secret"),
        (HEAD + "endpoints: [{slug: acme/a, target: {provider: [1]}}]\n", "provider: must be one of PLATFORM"),
        (HEAD + "endpoints: [{slug: acme/a, target: {upstream_state: pass}}]\n", "upstream_state: must be one of"),
        (HEAD + "endpoints: [{slug: acme/a, target: {dialects: [chat]}}]\n", "dialects.0: must be one of CHAT"),
    ],
)
def test_problem_names_line_and_field(text: str, problem: str) -> None:
    assert problem in problems(text)


def test_two_limits_of_a_type_are_refused() -> None:
    limits = "[{type: TOKEN, unit: SECOND, threshold: 1}, {type: TOKEN, unit: MINUTE, threshold: 1}]"
    assert "at most one rate limit per type" in problems(
        GROUP + f"    models: [{{slug: acme/a, rate_limits: {limits}}}]\n"
    )


def test_calls_in_flight_have_one_limit_whatever_its_unit_and_none_of_a_day() -> None:
    one = "{type: CONCURRENT_REQUEST, unit: SECOND, threshold: 1}"
    two = f"[{one}, {one.replace('SECOND', 'MINUTE')}]"
    assert "at most one rate limit per type" in problems(
        GROUP + f"    models: [{{slug: acme/a, rate_limits: {two}}}]\n"
    )
    daily = f"[{one.replace('SECOND', 'DAY')}]"
    assert "usage_limits.0.type: must be one of REQUEST" in problems(
        GROUP + f"    models: [{{slug: acme/a, usage_limits: {daily}}}]\n"
    )


def test_unquoted_text_is_what_it_looks_like() -> None:
    values = parse_yaml("[no, 1.5, 2026-11-24, 12:30:00, 010, -7, true, ~, 'true', '7', 1_000]").value
    assert values == ["no", "1.5", "2026-11-24", "12:30:00", "010", -7, True, None, "true", "7", "1_000"]


def test_nested_groups_and_parents_come_before_their_children() -> None:
    text = HEAD + (
        "groups:\n  - {external_entity_id: c, parent: b}\n"
        "  - external_entity_id: a\n    groups: [{external_entity_id: b}]\n"
    )
    groups = read_document(text).groups
    assert [(group.external_entity_id, group.parent) for group in groups] == [("a", None), ("b", "a"), ("c", "b")]


SCALARS: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, 1, "", "x", "VENDOR_A", "PLATFORM", [], {}, "acme/a", 2**53]
)


@settings(max_examples=20, deadline=None)
@given(document=policies(), data=st.data())
def test_the_schema_for_editors_and_the_check_agree(document: Item, data: st.DataObject) -> None:
    """Both judge files in which one random value, member or item is replaced."""
    VALIDATOR.check_schema(SCHEMA)
    at: Any = document
    while True:
        key = data.draw(st.sampled_from(sorted([*at, "more"]) if isinstance(at, dict) else list(range(len(at)))))
        inner = at.get(key) if isinstance(at, dict) else at[key]
        if not inner or not isinstance(inner, dict | list) or data.draw(st.booleans()):
            break
        at = inner
    at[key] = data.draw(SCALARS)
    assert (not list(problems_of(document))) == VALIDATOR.is_valid(document)
    assert parse_yaml(text_of(document)).value == document


def test_plan_prints_the_schema_and_wrong_flags_are_no_changes() -> None:
    result = CliRunner().invoke(tollgate, ["plan", "--schema"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, SCHEMA)
    assert CliRunner().invoke(tollgate, ["plan", "--wrong"]).exit_code == 1
    assert CliRunner().invoke(tollgate, ["plan", "/nonexistent"]).exit_code == 1
