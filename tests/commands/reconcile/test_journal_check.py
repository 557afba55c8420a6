"""Calls of journals against events: what is lost, rejected, different, and what is not wrong."""

from pathlib import Path
from typing import Any

import pytest

from commands.edges.journal_lines import journal_lines
from commands.errors import JournalError
from commands.reconcile.journal_check import JournalCheck, read_calls
from commands.records.billing_events import epoch_s, read_event
from tests.fakes.listed_events import DETAILS as STORED_DETAILS
from tests.fakes.listed_events import START_MS, listed_event, time_text

WINDOW = (epoch_s(time_text(START_MS)), epoch_s(time_text(START_MS + 1000)))


def line(number: int, state: str = "shipped", workspace: str = "ws_1", **changes: Any) -> dict[str, Any]:
    """The journal's line of `listed_event(number)`."""
    listed = listed_event(number)
    tokens = listed["tokens"]
    event = {
        "idempotency_key": listed["idempotencyKey"],
        "workspace_id": workspace,
        "external_entity_id": listed["externalEntityId"],
        "api_key_prefix": listed["apiKeyPrefix"],
        "request_id": listed["requestId"],
        "model_slug": listed["modelSlug"],
        "ended_at_ms": START_MS + number,
        "status": 200,
        "tokens": [tokens["inputTokens"], tokens["outputTokens"], tokens["cachedInputTokens"]],
    }
    return {"kept": state, "event": event | changes}


def check_of(*lines: dict[str, Any], events: Any = (), **more: Any) -> JournalCheck:
    check = JournalCheck(read_calls(lines), more.pop("workspace_id", None), *WINDOW, **more)
    for number in events:
        check.add(read_event(listed_event(number)))
    return check


def told(check: JournalCheck) -> list[tuple[str, str]]:
    return [(difference.what, difference.where) for difference in check.differences()]


def key(number: int) -> str:
    return str(listed_event(number)["idempotencyKey"])


def test_equal_books_have_no_difference() -> None:
    check = check_of(*(line(n) for n in range(5)), events=range(5))
    assert told(check) == []
    assert check.counts() == {
        "compared": 5,
        "waiting_in_journals": 0,
        "open_calls": 0,
        "events_without_journal": 0,
    }


def test_committed_call_that_the_database_lacks_is_told() -> None:
    assert told(check_of(line(0), line(1), events=[0])) == [("not in the database", key(1))]


def test_event_that_came_in_after_the_window_is_not_missing() -> None:
    check = check_of(line(0), line(1), events=[0])
    check.add(read_event(listed_event(1) | {"timestamp": time_text(START_MS + 5000)}), is_late=True)
    assert told(check) == []
    assert check.counts()["events_without_journal"] == 0


def test_different_tokens_are_told_with_both_figures() -> None:
    [difference] = check_of(line(0, tokens=[2, 9, 0]), events=[0]).differences()
    assert difference.what == "event differs from journal"
    assert (difference.ours[-5:], difference.theirs[-5:]) == ("2/1/0", "2/9/0")


def test_rejected_call_is_a_difference_and_a_waiting_or_open_one_is_not() -> None:
    check = check_of(line(0), line(1, "rejected"), line(2, "journal"), line(3, "open", tokens=None), events=[0])
    assert told(check) == [("rejected by control", key(1))]
    assert (check.counts()["waiting_in_journals"], check.counts()["open_calls"]) == (1, 1)


def test_calls_of_other_workspaces_are_left_out() -> None:
    assert told(check_of(line(0), line(1, workspace="ws_2"), events=[0])) == []


def test_unknown_workspace_is_asked_for() -> None:
    with pytest.raises(JournalError, match="--workspace-id"):
        check_of(line(0), line(1, workspace="ws_2")).differences()
    assert told(check_of(line(0), line(1, workspace="ws_2"), workspace_id="ws_2")) == [("not in the database", key(1))]
    assert told(check_of()) == []


def test_event_without_a_journal_is_wrong_only_if_all_machines_are_there() -> None:
    assert told(check_of(line(1), events=[0, 1, 2])) == []
    assert check_of(line(1), events=[0, 1, 2]).counts()["events_without_journal"] == 2
    assert told(check_of(line(1), events=[0, 1, 2], is_complete=True)) == [("not in a journal", key(2))]


def test_calls_that_are_kept_for_longer_do_not_make_older_events_wrong() -> None:
    """Journals forget which calls they committed before the oldest committed call that they have."""
    lines = [line(5), line(0, "rejected"), line(1, "open", ended_at_ms=0, tokens=None)]
    assert told(check_of(*lines, events=[3, 5, 6], is_complete=True)) == [
        ("rejected by control", key(0)),
        ("not in a journal", key(6)),
    ]
    assert told(check_of(line(4, "open", ended_at_ms=0, tokens=None), events=[1], is_complete=True)) == []


def test_call_that_moved_while_the_journals_were_read_counts_once() -> None:
    calls = read_calls([line(0, "journal"), line(0, "shipped"), line(0, "open", tokens=None)])
    assert [call.state for call in calls.values()] == ["shipped"]


def test_line_that_is_no_call_is_named() -> None:
    with pytest.raises(JournalError, match="workspace_id"):
        read_calls([{"kept": "rejected", "event": {"idempotency_key": "01"}}])


def test_directory_without_journals_is_named_once() -> None:
    with pytest.raises(JournalError, match=r"^/nonexistent: there is no such directory"):
        list(journal_lines(Path("/nonexistent")))


DETAILS = {"status": 200, "source": "REPORTED", "service_tier": "flex", "details": [5, 3, 7, 0, 0, 0, 0, 2]}


@pytest.mark.parametrize(
    ("journaled", "stored", "count"),
    [
        pytest.param(DETAILS, {}, 0, id="equal"),
        pytest.param(DETAILS, {"reasoningTokens": 8}, 1, id="another figure"),
        pytest.param(DETAILS, {"serviceTier": None}, 1, id="another tier"),
        pytest.param(DETAILS, {"status": None, "source": None}, 0, id="stored by an older version"),
        pytest.param({}, {}, 0, id="journaled by an older version"),
    ],
)
def test_details_are_compared_where_both_sides_have_them(
    journaled: dict[str, Any], stored: dict[str, Any], count: int
) -> None:
    check = check_of(line(0, **journaled))
    check.add(read_event(listed_event(0) | {"details": STORED_DETAILS | stored}))
    assert len(check.differences()) == count
