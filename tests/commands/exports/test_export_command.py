"""The commands `events export` and `audit export`: windows, files and what is kept between runs."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from commands.connection import Connection
from commands.times import api_time
from control.operator.cli import tollgate
from tests.commands.fake_api import FakeApi, page

START = "2026-11-01T00:00:00.000Z"
MIDDLE = "2026-11-02T00:00:00.000Z"
END = "2026-11-03T00:00:00.000Z"
EVENTS = "/v1/gateway/events"
CHANGES = "/v1/audit_events"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """Empty lists in place of a management API."""
    window = {"window": {"start_time": START, "end_time": END}}
    fake = FakeApi({f"GET {EVENTS}": page() | window, f"GET {CHANGES}": page()})
    monkeypatch.setattr(Connection, "run", lambda _self, work: asyncio.run(work(fake)))
    monkeypatch.setenv("TOLLGATE_API_KEY", "tg_x")
    return fake


def run(*words: str) -> Result:
    return CliRunner().invoke(tollgate, words)


def queries(api: FakeApi) -> list[dict[str, Any]]:
    return [query for _method, _path, _body, query in api.requests]


def test_changes_in_a_file_end_where_all_have_committed(api: FakeApi, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    later = api_time("2099-01-01", now)
    words = ("audit", "export", "--since", START, "--until", later)
    assert run(*words).exit_code == 0
    assert run(*words, "--output", str(tmp_path / "changes")).exit_code == 0
    ends = [query["end_time"] for query in queries(api)]
    assert ends[0] == later
    assert ends[1] <= (datetime.now(UTC) - timedelta(minutes=1)).isoformat(), "a change may commit late"


@pytest.mark.parametrize(
    ("command", "path", "state"),
    [
        (
            "events",
            EVENTS,
            {"asked": {"until": None, "entities": ["e"], "key_prefixes": [], "format": "csv", "since": START},
             "position": {"start": MIDDLE, "cursor": None, "events": 7, "has_head": True}},
        ),
        (
            "audit",
            CHANGES,
            {"asked": {"since": START, "actor": "cli", "format": "csv"},
             "position": {"start": MIDDLE, "until": None, "cursor": None, "changes": 7, "has_head": True}},
        ),
    ],
)  # fmt: skip
def test_export_goes_on_from_the_state_of_an_older_version(
    api: FakeApi, tmp_path: Path, command: str, path: str, state: dict[str, Any]
) -> None:
    file = tmp_path / "export"
    file.touch()
    (tmp_path / "export.state").write_text(json.dumps(state | {"bytes": 0}))
    flags = ("--entity", "e") if command == "events" else ("--actor", "cli")
    words = (command, "export", *flags, "--format", "csv", "--until", END, "--output", str(file))
    result = run(*words)
    noun = "events" if command == "events" else "changes"
    assert result.output == f"{file}: 0 new {noun}, 7 in all, up to {END}\n"
    assert [(query["start_time"], query["end_time"]) for query in queries(api)] == [(MIDDLE, END)]
    assert json.loads((tmp_path / "export.state").read_text())["position"][noun] == 7


@pytest.mark.parametrize(
    ("command", "flag"), [("events", "--group"), ("events", "--key"), ("events", "--format"), ("audit", "--actor")]
)
def test_export_with_another_filter_into_the_same_file_is_refused(
    api: FakeApi, tmp_path: Path, command: str, flag: str
) -> None:
    words = (command, "export", "--since", START, "--output", str(tmp_path / "export"))
    assert run(*words).exit_code == 0
    refused = run(*words, flag, "jsonl")
    assert (refused.exit_code, f"other values of {flag}." in refused.stderr) == (1, True)


def test_an_export_without_a_beginning_is_refused(api: FakeApi) -> None:
    refused = run("audit", "export")
    assert (refused.exit_code, "--since is needed" in refused.stderr) == (2, True)


def test_a_hyphen_is_standard_output(api: FakeApi) -> None:
    result = run("events", "export", "--since", START, "--output", "-")
    assert (result.exit_code, result.output.partition(",")[0]) == (0, "timestamp")


def test_details_are_asked_for_and_are_of_the_whole_file(api: FakeApi, tmp_path: Path) -> None:
    words = ("events", "export", "--output", str(tmp_path / "events"))
    assert run(*words, "--details", "--since", START).exit_code == 0
    assert [query["include"] for query in queries(api)] == ["details"]
    assert "other values of --details" in run(*words).output
    assert run(*words, "--details").exit_code == 0
    plain = ("events", "export", "--output", str(tmp_path / "plain"))
    assert run(*plain, "--since", START).exit_code == 0
    assert "include" not in queries(api)[-1]
    assert "other values of --details" in run(*plain, "--details").output
