"""Statements of all entities: a file for each, an index written last, and a run that was cut off completed."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands.billing.all_statements import StatementFiles, file_name, write_all
from commands.billing.months import StatementRequest
from commands.edges.statement_directory import StatementDirectory, opened_directory
from commands.errors import AwayError, ManagementError
from tests.commands.billing.test_statements import line
from tests.commands.fake_api import FakeApi

NOVEMBER = StatementRequest.of("2026-11", "csv", False)
ENTITIES = ["../../etc/passwd", "=1+1", "A", "a", "index", "Kunde ü", "kunde-u", "\0\n", "x" * 255, "x" * 254]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StatementDirectory]:
    with opened_directory(tmp_path / "made" / "here") as output:
        yield output


def api(end: str = NOVEMBER.end, fails: bool = False) -> FakeApi:
    """A report of two pages; the second one may fail."""

    def answer(_body: Any, query: Any) -> Any:
        is_first = "cursor" not in query
        if fails and not is_first:
            raise AwayError("gone")
        entities = ENTITIES[:4] if is_first else ENTITIES[4:]
        items = [{"external_entity_id": entity, "lines": [line("0.004"), line("0.004")]} for entity in entities]
        pagination = {"has_more": is_first, "cursor": "next" if is_first else None}
        return {"items": items, "pagination": pagination, "window": {"start_time": NOVEMBER.start, "end_time": end}}

    return FakeApi({"GET /v1/gateway/usage_report": answer})


def files(tmp_path: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (tmp_path / "made" / "here").iterdir()}


async def test_each_entity_has_a_file_of_its_own_and_the_index_names_it(
    directory: StatementDirectory, tmp_path: Path
) -> None:
    counts: list[int] = []
    assert await write_all(api(), NOVEMBER, directory, counts.append) == StatementFiles(len(ENTITIES), 0)
    assert counts == [4, len(ENTITIES)]
    by_name = files(tmp_path)
    index = list(csv.DictReader(io.StringIO(by_name.pop("index.csv"))))
    assert [row["entity"].removeprefix("'") for row in index] == ENTITIES
    assert {row["file"].lower() for row in index} == set(by_name)
    assert {(row["calls"], row["currency"], row["total"], row["status"]) for row in index} == {
        ("4", "EUR", "0.01", "final")
    }
    assert all(name.isascii() and len(name) < 100 and "/" not in name for name in by_name)
    assert "'=1+1" in by_name[file_name("=1+1", NOVEMBER)]


async def test_a_run_that_was_cut_off_has_no_index_and_the_next_one_completes_it(
    directory: StatementDirectory, tmp_path: Path
) -> None:
    await write_all(api(), NOVEMBER, directory, lambda _: None)
    (tmp_path / "made/here" / file_name("a", NOVEMBER)).unlink()
    with pytest.raises(AwayError):
        await write_all(api(fails=True), NOVEMBER, directory, lambda _: None)
    assert "index.csv" not in files(tmp_path)
    status = (tmp_path / "made/here" / file_name("A", NOVEMBER)).stat()
    await write_all(api(), NOVEMBER, directory, lambda _: None)
    assert len(files(tmp_path)) == len(ENTITIES) + 1
    assert (tmp_path / "made/here" / file_name("A", NOVEMBER)).stat().st_ino == status.st_ino, "written again"


async def test_statements_that_say_something_else_than_before_are_counted(
    directory: StatementDirectory, tmp_path: Path
) -> None:
    """The customer may have the earlier statement already; a price was changed since."""
    await write_all(api(), NOVEMBER, directory, lambda _: None)
    (tmp_path / "made/here" / file_name("a", NOVEMBER)).write_text("of the old price")
    assert (await write_all(api(), NOVEMBER, directory, lambda _: None)).changed == 1
    assert (await write_all(api(), NOVEMBER, directory, lambda _: None)).changed == 0


async def test_nothing_is_written_before_the_month_is_final_or_over_another_month(
    directory: StatementDirectory, tmp_path: Path
) -> None:
    with pytest.raises(ManagementError, match="--draft"):
        await write_all(api(end="2026-11-20T00:00:00.000Z"), NOVEMBER, directory, lambda _: None)
    assert files(tmp_path) == {}
    await write_all(api(), NOVEMBER, directory, lambda _: None)
    before = files(tmp_path)
    for other in (StatementRequest.of("2026-12", "csv", True), StatementRequest.of("2026-11", "html", True)):
        with pytest.raises(ManagementError, match="other statements"):
            await write_all(api(), other, directory, lambda _: None)
    assert files(tmp_path) == before


WITH_GROUPS_BELOW = StatementRequest.of("2026-11", "csv", False, with_groups_below=True)


async def test_groups_that_shared_an_external_id_have_files_of_their_own(
    directory: StatementDirectory, tmp_path: Path
) -> None:
    """One of them is deleted. The external id of a third is no longer known."""
    names = [{"external_entity_id": "c", "group_id": "grp_1"}, {"external_entity_id": "c", "group_id": "grp_2"}]
    items = [name | {"lines": [line("0.004")]} for name in (*names, {"group_id": "grp_3"})]
    pagination = {"has_more": False, "cursor": None}
    window = {"start_time": NOVEMBER.start, "end_time": NOVEMBER.end}
    answer = {"items": items, "pagination": pagination, "window": window}
    fake = FakeApi({"GET /v1/gateway/usage_report": lambda _body, _query: answer})
    await write_all(fake, WITH_GROUPS_BELOW, directory, lambda _: None)
    assert fake.requests[0][3]["rollup"] == "true"
    index = list(csv.DictReader(io.StringIO(files(tmp_path)["index.csv"])))
    assert [(row["entity"], row["group_id"]) for row in index] == [("c", "grp_1"), ("c", "grp_2"), ("", "grp_3")]
    assert len({row["file"] for row in index}) == 3
    with pytest.raises(ManagementError, match="other statements"):
        await write_all(api(), NOVEMBER, directory, lambda _: None)


def test_a_directory_is_used_by_one_command_at_a_time(directory: StatementDirectory, tmp_path: Path) -> None:
    with pytest.raises(ManagementError, match="another command"), opened_directory(tmp_path / "made" / "here"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(ManagementError, match="no directory"), opened_directory(tmp_path / "file"):
        pass
