"""Bodies from files and flags, paths with names in them, and limits on the command line."""

import io
from typing import Any

import click
import pytest

from commands.editing.bodies import body_of, check_something
from commands.editing.limits import LimitChange, changed, limits_of, parse_limits
from commands.editing.paths import path
from commands.editing.shown import details

CONTEXT = click.Context(click.Command("set"))
OPTION = click.Option(["--limit"])


def limits(*texts: str) -> tuple[LimitChange, ...]:
    return parse_limits(CONTEXT, OPTION, texts)


def test_flags_are_put_over_the_file_member_by_member() -> None:
    file = io.StringIO('{"metadata": {"external_entity_id": "a", "name": "A"}, "models": [1]}')
    assert body_of(file, {"metadata": {"name": "B"}}) == {
        "metadata": {"external_entity_id": "a", "name": "B"},
        "models": [1],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not JSON"), ("[]", "expected a JSON object"), ('{"a": {"b": 1, "b": 2}}', "'b' is there twice")],
)
def test_files_that_are_no_object_are_refused(text: str, message: str) -> None:
    with pytest.raises(click.ClickException, match=message):
        body_of(io.StringIO(text), {})


def test_change_of_nothing_is_refused_with_all_that_the_command_could_change() -> None:
    address = click.Argument(["thing"])
    place = click.Argument(["place"], metavar="[PLACE]", required=False)
    options = [click.Option(["--name"]), click.Option(["--on/--off"]), click.Option(["-f", "--file"])]
    command = click.Command("set", params=[address, place, *options, click.Option(["--url"])])
    with click.Context(command), pytest.raises(click.UsageError, match=r"give PLACE, --name, --on, --off or -f$"):
        check_something({})


def test_deep_json_is_refused_and_no_crash() -> None:
    with pytest.raises(click.ClickException, match="not JSON"):
        body_of(io.StringIO('{"a":' * 100_000), {})


def test_a_segment_of_a_path_stays_one() -> None:
    assert path("secrets", "a b/../c?d#e%2F") == "/v1/secrets/a%20b%2F..%2Fc%3Fd%23e%252F"
    for text in ("", ".", ".."):
        with pytest.raises(click.ClickException, match="neither an id nor a name"):
            path("secrets", text)


def test_limits_replace_their_type_and_keep_the_others() -> None:
    minute: dict[str, Any] = {"type": "REQUEST", "unit": "MINUTE", "threshold": 60}
    tokens: dict[str, Any] = {"type": "TOKEN", "unit": "DAY", "threshold": 9}
    models: list[dict[str, Any]] = [{"slug": "a/b", "rate_limits": [minute], "usage_limits": [tokens]}, {"slug": "a/c"}]
    second = {"type": "REQUEST", "unit": "SECOND", "threshold": 5}
    assert changed(models, ["a/d", "a/c"], limits("a/b:request/second=5", "a/b:TOKEN/DAY=none")) == [
        {"slug": "a/b", "rate_limits": [second], "usage_limits": []},
        {"slug": "a/c"},
        {"slug": "a/d"},
    ]
    assert changed(models, [], limits("a/b:REQUEST/SECOND=none"))[0]["rate_limits"] == [minute], "another unit"
    assert list(limits_of(models[0])) == ["60 REQUEST/MINUTE", "9 TOKEN/DAY"]


def test_a_limit_of_calls_in_flight_is_removed_whatever_its_unit() -> None:
    five: dict[str, Any] = {"type": "CONCURRENT_REQUEST", "unit": "MINUTE", "threshold": 5}
    models: list[dict[str, Any]] = [{"slug": "a/b", "rate_limits": [five]}]
    assert list(limits_of(models[0])) == ["5 CONCURRENT_REQUEST/MINUTE"]
    assert changed(models, [], limits("a/b:concurrent_request/second=none"))[0]["rate_limits"] == []


@pytest.mark.parametrize("text", ["a/b", "a/b=5", "a/b:REQUEST/HOUR=5", "a/b:REQUEST/DAY=-5", "a/b:REQUEST/DAY=5.0"])
def test_other_text_is_no_limit(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected SLUG:TYPE/UNIT=N"):
        limits(text)


def test_details_cannot_move_the_cursor_and_unwrap_a_lone_object() -> None:
    answer = {"project": {"name": "a\x1b[2J", "job": None, "tags": ["x", {"y": 1}], "at": {"step": 2}}}
    assert details(answer).splitlines() == [
        "name     a\N{REPLACEMENT CHARACTER}[2J",
        "job      -",
        "tags     x",
        '         {"y": 1}',
        "at.step  2",
    ]
