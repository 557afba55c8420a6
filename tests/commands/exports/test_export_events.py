"""Exports over pages and windows: each event once, over repetitions and crashes at any moment."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.edges.export_file import ExportFileError, opened
from commands.exports.exporter import Exporter, Position, Selection
from commands.exports.listing import CSV, FORMATS, JSON_LINES
from commands.resources.events import DETAILED_EVENTS, EVENTS
from tests.fakes.listed_events import DETAILS

START = "2026-11-01T00:00:00.000Z"
ALL = Selection({}, JSON_LINES, None)


def event(number: int) -> dict[str, Any]:
    tokens = {"inputTokens": number, "outputTokens": 2, "cachedInputTokens": 1}
    names = {"idempotencyKey": f"01K{number:05}", "requestId": f"req-{number}", "modelSlug": "acme/chat"}
    times = {"type": "API_BILLING_USAGE", "timestamp": moment(number)}
    return times | names | {"externalEntityId": "=customer", "apiKeyPrefix": "tg_x", "tokens": tokens}


def moment(number: int) -> str:
    return f"2026-11-01T00:{number // 60:02}:{number % 60:02}.000Z"


class Books:
    """The list of events, as control serves it: pages of a window that ends where the holdback begins."""

    def __init__(self, page_events: int) -> None:
        self.final = 0
        self._page_events = page_events

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        if "cursor" in query:
            first, end = json.loads(query["cursor"])
        else:
            first = next((n for n in range(self.final) if moment(n) >= query["start_time"]), self.final)
            end = self.final
            if query.get("end_time"):
                end = min(end, sum(moment(n) < query["end_time"] for n in range(self.final)))
        last = min(first + self._page_events, end)
        cursor = json.dumps([last, end]) if last < end else None
        window = {"start_time": START, "end_time": moment(end)}
        items = [event(number) for number in range(first, last)]
        return {"items": items, "pagination": {"has_more": cursor is not None, "cursor": cursor}, "window": window}


class Killed(Exception):
    """The process ends here."""


class Crashing:
    """Ends the process before the text is written, between text and state, or not at all."""

    def __init__(self, file: Any, moments: Any) -> None:
        self._file = file
        self._moments = moments

    def append(self, text: str, position: Mapping[str, Any]) -> None:
        when = next(self._moments, None)
        if when == "before":
            raise Killed
        if when == "between":
            with self._file._path.open("ab") as file:
                file.write(text.encode()[: len(text) // 2 + 1])
            raise Killed
        self._file.append(text, position)


async def run(path: Path, books: Books, selection: Selection, moments: Any = ()) -> None:
    with opened(path) as file:
        if file.state is None:
            file.begin({}, Position(START).state(EVENTS.noun))
        assert file.state is not None
        at = Position.from_state(file.state.position, EVENTS.noun)
        await Exporter(books, EVENTS, selection, Crashing(file, iter(moments))).run(at)


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=5),
    st.lists(st.sampled_from(["before", "between", "", ""]), max_size=12),
    st.sampled_from(FORMATS),
)
async def test_each_event_is_there_once_over_crashes(
    tmp_path_factory: pytest.TempPathFactory, growth: list[int], moments: list[str], format: str
) -> None:
    path = tmp_path_factory.mktemp("export") / "events"
    books = Books(3)
    selection = Selection({}, format, None)
    remaining = iter(moments)
    for new in growth:
        books.final += new
        for _ in range(len(moments) + 1):
            try:
                await run(path, books, selection, remaining)
                break
            except Killed:
                continue
    await run(path, books, selection)
    assert path.read_text() == EVENTS.head(format) + EVENTS.lines(
        format, [event(number) for number in range(sum(growth))]
    )


async def test_an_export_until_a_moment_ends_there(tmp_path: Path) -> None:
    books = Books(2)
    books.final = 9
    selection = Selection({}, JSON_LINES, moment(5))
    for _ in range(2):
        await run(tmp_path / "events", books, selection)
    keys = [json.loads(line)["tokens"]["inputTokens"] for line in (tmp_path / "events").read_text().splitlines()]
    assert keys == [0, 1, 2, 3, 4]


def test_csv_has_a_head_and_no_formula() -> None:
    assert EVENTS.head(CSV).startswith("timestamp,idempotency_key,")
    assert EVENTS.lines(CSV, [event(7)]) == f"{moment(7)},01K00007,req-7,acme/chat,'=customer,tg_x,7,2,1\n"


def test_csv_with_details_has_a_column_for_each_and_the_cost() -> None:
    head = DETAILED_EVENTS.head(CSV).rstrip("\n").split(",")
    assert head[: len(EVENTS.header)] == list(EVENTS.header)
    unpriced = event(1) | {"details": DETAILS | {"source": None, "status": None}, "cost": None}
    priced = event(1) | {"details": DETAILS, "cost": {"amount": "0.25", "currency": "EUR"}}
    rows = [row.split(",") for row in DETAILED_EVENTS.lines(CSV, [priced, unpriced]).splitlines()]
    first, second = (dict(zip(head, row, strict=True)) for row in rows)
    assert (first["status"], first["reasoning_tokens"], first["cost"], first["currency"]) == ("200", "7", "0.25", "EUR")
    assert (second["status"], second["source"], second["cost"], second["currency"]) == ("", "", "", "")


async def test_files_that_no_export_began_or_that_lost_events_are_refused(tmp_path: Path) -> None:
    stranger = tmp_path / "report.csv"
    stranger.write_text("mine\n")
    with pytest.raises(ExportFileError, match="no export began it"), opened(stranger):
        pass
    assert stranger.read_text() == "mine\n"
    books = Books(2)
    path = tmp_path / "events"
    books.final = 3
    await run(path, books, ALL)
    path.write_text("")
    with pytest.raises(ExportFileError, match="events are missing"), opened(path):
        pass
    (tmp_path / "events.state").write_text("{")
    with pytest.raises(ExportFileError, match="cannot be read"), opened(path):
        pass


def test_two_exports_into_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with opened(path), pytest.raises(ExportFileError, match="another export writes"), opened(path):
        pass


def test_file_and_state_are_for_their_owner_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "events") as file:
        file.begin({}, {})
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
