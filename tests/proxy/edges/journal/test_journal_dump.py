"""`journal dump` finds each call that a directory still holds, and changes nothing."""

import os
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from proxy.command import main
from proxy.edges.journal.supervisor.delivery import REJECTED_NAME
from proxy.edges.journal.supervisor.journal_dump import dumped_calls
from proxy.edges.journal.supervisor.journal_reader import JournalReader
from proxy.edges.journal.supervisor.shipped_events import DIRECTORY_NAME
from proxy.edges.journal.writer import JournalWriter
from tests.proxy.edges.journal.journals import SMALL, FakeIngest, finish, key, kill, ship_all, start, write_calls


def found(directory: Path) -> dict[str, list[str]]:
    """The kinds that each call is kept as."""
    calls: dict[str, list[str]] = {}
    for line in map(orjson.loads, dumped_calls(directory)):
        calls.setdefault(line["event"]["idempotency_key"], []).append(line["kept"])
    return calls


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def test_every_call_is_found_and_nothing_changes(tmp_path: Path) -> None:
    dead = JournalWriter(tmp_path, "w0", SMALL)
    write_calls(dead, *range(100))
    kill(dead)
    ingest = FakeIngest()
    ingest.poison = key(7)
    await ship_all(tmp_path, ingest)
    living = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(living, *range(100, 180))  # several segments
    start(living, 180, metadata={"secret": "of the customer"})
    before = files(tmp_path)
    expected = {key(n): ["shipped"] for n in range(100)} | {key(n): ["journal"] for n in range(100, 180)}
    assert found(tmp_path) == expected | {key(7): ["rejected"], key(180): ["open"]}
    assert files(tmp_path) == before
    assert "secret" not in "".join(dumped_calls(tmp_path))
    finish(living, 180)
    assert found(tmp_path)[key(180)] == ["journal"]
    kill(living)


async def test_batch_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "w0", SMALL)
    write_calls(journal, *range(10))
    kill(journal)
    await ship_all(tmp_path, FakeIngest())
    [file] = (tmp_path / DIRECTORY_NAME).glob("*.events")
    file.write_bytes(file.read_bytes() + b"TGS1\xff\0\0\0torn")
    assert len(found(tmp_path)) == 10


def test_segments_that_are_deleted_meanwhile_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = JournalWriter(tmp_path, "w0", SMALL)
    write_calls(journal, *range(10))
    read = JournalReader.read
    failures = [FileNotFoundError()]

    def failing(self: JournalReader, limit: int) -> object:
        if failures:
            raise failures.pop()
        return read(self, limit)

    monkeypatch.setattr(JournalReader, "read", failing)
    assert len(found(tmp_path)) == 10
    kill(journal)


def test_command_prints_lines_and_names_a_missing_directory(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    line = b'{"idempotency_key":"01JD","tokens":[1,2,0],"request_metadata":{"a":1}}\n'
    (tmp_path / "journal" / REJECTED_NAME).write_bytes(line)
    for words in (
        ["--data", str(tmp_path), "journal", "dump"],
        ["journal", "dump", "--journal-dir", f"{tmp_path}/journal"],
    ):
        result = CliRunner().invoke(main, words)
        assert result.output == '{"kept":"rejected","event":{"idempotency_key":"01JD","tokens":[1,2,0]}}\n'
    missing = CliRunner().invoke(main, ["journal", "dump", "--journal-dir", f"{tmp_path}/none"])
    assert (missing.exit_code, "TOLLGATE_JOURNAL_DIR" in missing.output) == (1, True)
    assert os.listdir(tmp_path) == ["journal"]
