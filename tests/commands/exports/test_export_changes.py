"""`tollgate audit`: the table, and exports that have each change once, over repetitions and crashes."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from commands.edges.export_file import opened
from commands.exports.exporter import Exporter, Position, Selection
from commands.exports.listing import CSV, JSON_LINES
from commands.resources.audit import CHANGES

PAGE = 2


def moment(number: int) -> str:
    return f"2026-11-01T00:00:{number:02}.000Z"


def change(number: int) -> dict[str, Any]:
    names = {"id": f"aud_{number:03}", "actor": "tg_x", "action": "group.update", "resource": "groups/grp_1"}
    sides = {"before": {"name": "=1+1"}, "after": None}
    return {"timestamp": moment(number), **names, **sides, "request_id": None}


class Trail:
    """The audit trail as control serves it: pages of a window, newest first."""

    def __init__(self) -> None:
        self.change_count = 0
        self.queries: list[Mapping[str, Any]] = []

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        assert (method, path) == ("GET", "/v1/audit_events")
        self.queries.append(query)
        if "cursor" in query:
            numbers = json.loads(query["cursor"])
        else:
            within = [n for n in range(self.change_count) if query["start_time"] <= moment(n) < query["end_time"]]
            numbers = sorted(within, reverse=True)
        cursor = json.dumps(numbers[PAGE:]) if len(numbers) > PAGE else None
        items = [change(number) for number in numbers[:PAGE]]
        return {"items": items, "pagination": {"has_more": cursor is not None, "cursor": cursor}}


class KilledError(Exception):
    """The process ends here."""


def selection(until: int, format: str = JSON_LINES) -> Selection:
    return Selection({"actor": "tg_x"}, format, moment(until))


async def run(trail: Trail, path: Path, until: int, pages: int | None = None) -> None:
    """One run of the command, which is killed after so many pages: their text is written, the state is not."""
    with opened(path) as file:
        if file.state is None:
            at = Position(moment(0))
            file.begin({}, at.state(CHANGES.noun))
        else:
            at = Position.from_state(file.state.position, CHANGES.noun)

        class Sink:
            pages_left = pages

            def append(self, text: str, position: Mapping[str, Any]) -> None:
                if self.pages_left == 0:
                    with path.open("a") as torn:
                        torn.write(text[: len(text) // 2])
                    raise KilledError
                self.pages_left = None if self.pages_left is None else self.pages_left - 1
                file.append(text, position)

        await Exporter(trail, CHANGES, selection(until), Sink()).run(at)


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("pages", range(4))
async def test_a_killed_export_goes_on_with_each_change_once(tmp_path: Path, pages: int) -> None:
    trail = Trail()
    path = tmp_path / "audit.jsonl"
    trail.change_count = 7
    with pytest.raises(KilledError):
        await run(trail, path, until=7, pages=pages)
    trail.change_count = 12  # changes of later windows come meanwhile
    await run(trail, path, until=9)
    await run(trail, path, until=12)
    await run(trail, path, until=12)
    assert sorted(ids(path)) == [change(number)["id"] for number in range(12)]
    assert trail.queries[0] == {"limit": 1000, "actor": "tg_x", "start_time": moment(0), "end_time": moment(7)}


async def test_an_end_before_the_start_asks_nothing(tmp_path: Path) -> None:
    trail = Trail()
    await run(trail, tmp_path / "audit.jsonl", until=0)
    assert trail.queries == []


def test_csv_has_the_sides_as_json_and_no_formulas() -> None:
    text = CHANGES.head(CSV) + CHANGES.lines(CSV, [change(1) | {"request_id": "=cmd()"}])
    (row,) = csv.DictReader(text.splitlines())
    assert json.loads(row["before"]) == {"name": "=1+1"}
    assert (row["after"], row["request_id"], row["actor"]) == ("", "'=cmd()", "tg_x")
