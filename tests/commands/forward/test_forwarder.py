"""Each event is delivered once: over crashes at every step, outages, restored databases and refusals."""

import json
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from commands.edges.forwarding.event_files import JsonlFile, LinesFile
from commands.edges.forwarding.forwarder_state import StateError, opened, read_progress
from commands.edges.forwarding.parquet_parts import ParquetParts
from commands.forward.forwarder import InDoubtError, RefusedEventError
from commands.forward.retries import GaveUpError
from commands.records.billing_events import Event
from commands.records.billing_events import time_text as time_of
from commands.records.receiver import ReceiverAwayError, ReceiverError, Recovery, RefusedEvent
from tests.commands.forward.scene import START, DiedError, Scene, Steps
from tests.fakes.listed_events import START_MS, ListedEvents, keys, listed_event, time_text


@dataclass
class Remembering:
    """A receiver that drops ids that it has, and fails as told."""

    batch_events: int = 3
    remembers_s: float | None = None
    events: dict[str, Event] = field(default_factory=dict)
    received: int = 0
    failures: list[str] = field(default_factory=list)
    """The faults of the next deliveries: `before` fails before it takes, `after` after it took."""
    refuses: set[str] = field(default_factory=set)

    def recover(self, mark: int | None) -> Recovery | None:
        return None

    async def deliver(self, events: Sequence[Event]) -> tuple[list[RefusedEvent], int]:
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "before":
            raise ReceiverAwayError("connection refused", is_in_doubt=False)
        self.received += len(events)
        refused = [RefusedEvent(event, "400 no") for event in events if event.entity in self.refuses]
        self.events |= {event.key: event for event in events if event.entity not in self.refuses}
        if failure == "after":
            raise ReceiverAwayError("timed out")
        return refused, 0

    async def close(self) -> None: ...


def some(count: int) -> list[Any]:
    """Events, three of each millisecond."""
    return [
        listed_event(number) | {"timestamp": time_text(START_MS + number // 3)}  # keys stay distinct and ordered
        for number in range(count)
    ]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_consecutive_runs_deliver_each_event_once(tmp_path: Path) -> None:
    receiver = Remembering()
    client = ListedEvents(some(20))
    client.final = time_text(START_MS + 4)
    scene = Scene(tmp_path, client, lambda: receiver)
    assert (await scene.run()).forwarded == 12
    assert (await scene.run()).forwarded == 12
    client.final = time_text(START_MS + 100)
    assert (await scene.run()).forwarded == receiver.received == 20
    assert sorted(receiver.events) == keys(client.events)


async def test_end_bounds_what_is_delivered(tmp_path: Path) -> None:
    receiver = Remembering()
    client = ListedEvents(some(9))
    scene = Scene(tmp_path, client, lambda: receiver)
    for _ in range(2):
        assert (await scene.run(end=time_text(START_MS + 2))).position.timestamp == time_text(START_MS + 2)
    assert sorted(receiver.events) == keys(client.events)[:6]


@pytest.mark.parametrize("page_items", [1, 4, 1000])
async def test_jsonl_is_exact_over_deaths_at_every_step(tmp_path: Path, page_items: int) -> None:
    client = ListedEvents(some(20), page_items=page_items)
    output = tmp_path / "events.jsonl"
    scene = Scene(tmp_path, client, lambda: JsonlFile(output, 3))
    assert await scene.run_dying_everywhere() > 5
    assert lines(output) == client.events


async def test_jsonl_torn_line_is_cut_off(tmp_path: Path) -> None:
    client = ListedEvents(some(9))
    output = tmp_path / "events.jsonl"
    scene = Scene(tmp_path, client, lambda: JsonlFile(output, 3))
    with pytest.raises(DiedError):
        await scene.run(Steps(dies_before=5))
    with output.open("a") as file:
        file.write('{"type":"API_BILL')
    await scene.run()
    assert lines(output) == client.events


async def test_parquet_parts_are_exact_and_never_change(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    client = ListedEvents(some(20))
    output = tmp_path / "parts"
    scene = Scene(tmp_path, client, lambda: ParquetParts(output, 3))
    earlier: dict[str, bytes] = {}
    for deaths in range(100):
        try:
            await scene.run(Steps(dies_before=deaths % 5))
            break
        except DiedError:
            parts = {path.name: path.read_bytes() for path in output.glob("*.parquet")}
            assert parts | earlier == parts
            earlier = parts
    tables = [parquet.read_table(path) for path in sorted(output.iterdir())]
    assert [key for table in tables for key in table["idempotency_key"].to_pylist()] == keys(client.events)
    assert sum(sum(table["output_tokens"].to_pylist()) for table in tables) == sum(range(1, 21))
    assert tables[0]["timestamp"][0].as_py().timestamp() * 1000 == START_MS
    assert read_progress(scene.state_path)[1].forwarded == 20


async def test_http_receiver_counts_each_event_once_over_deaths_and_failures(tmp_path: Path) -> None:
    receiver = Remembering()
    client = ListedEvents(some(30), failures=2)
    receiver.failures = ["before", "after", "", "after", "after", "before"] * 3
    scene = Scene(tmp_path, client, lambda: receiver)
    await scene.run_dying_everywhere()
    assert sorted(receiver.events) == keys(client.events)
    assert receiver.received > 30
    assert read_progress(scene.state_path)[1].forwarded == 30


async def test_cursor_that_control_refuses_is_replaced(tmp_path: Path) -> None:
    receiver = Remembering()
    client = ListedEvents(some(20), refuses_cursors=True)
    await Scene(tmp_path, client, lambda: receiver).run()
    assert receiver.received == 20
    assert sorted(receiver.events) == keys(client.events)


async def test_events_that_a_restored_database_shows_again_are_not_delivered_again(tmp_path: Path) -> None:
    """The events come back with their keys and later timestamps (decision 0019)."""
    output = tmp_path / "events.jsonl"
    client = ListedEvents(some(12))
    client.final = time_text(START_MS + 1000)
    scene = Scene(tmp_path, client, lambda: JsonlFile(output, 5))
    await scene.run()
    client.events = [
        *client.events[:6],
        *({**event, "timestamp": time_text(START_MS + 2000)} for event in client.events[6:]),
        listed_event(3000),
    ]
    client.final = time_text(START_MS + 10_000)
    progress = await scene.run()
    assert keys(lines(output)) == keys(some(12)) + keys([listed_event(3000)])
    assert (progress.forwarded, progress.repeated) == (13, 6)


async def test_refused_event_stops_the_forwarder_and_names_it(tmp_path: Path) -> None:
    """An entity may have any name, such as one that would change a terminal."""
    client = ListedEvents([listed_event(0), listed_event(1, entity="un\x1b[31mknown"), listed_event(2)])
    receiver = Remembering(refuses={"un\x1b[31mknown"})
    with pytest.raises(RefusedEventError, match=r"'un\\x1b\[31mknown'.*400 no"):
        await Scene(tmp_path, client, lambda: receiver).run()


async def test_refused_events_go_to_the_dead_letters_once(tmp_path: Path) -> None:
    client = ListedEvents([listed_event(n, entity="unknown" if n % 3 else "known") for n in range(12)])
    receiver = Remembering(refuses={"unknown"})
    path = tmp_path / "dead.jsonl"
    scene = Scene(tmp_path, client, lambda: receiver, dead_letters=lambda: LinesFile(path))
    await scene.run_dying_everywhere()
    assert [letter["event"] for letter in lines(path)] == [client.events[n] for n in range(12) if n % 3]
    assert {letter["reason"] for letter in lines(path)} == {"400 no"}
    progress = read_progress(scene.state_path)[1]
    assert (progress.forwarded, progress.dead_letters) == (4, 8)


async def die_before_saving(scene: Scene) -> None:
    """End a run at its start, and then each run after it delivered a batch."""
    for _ in range(4):
        with suppress(DiedError):
            await scene.run(Steps(dies_before=1))


@pytest.mark.parametrize("fate", ["kept", "taken away", "emptied"])
async def test_dead_letters_are_exact_when_it_dies_before_they_are_recorded(tmp_path: Path, fate: str) -> None:
    """The same holds for another file, begun after somebody dealt with the first one."""
    client = ListedEvents([listed_event(n, entity="unknown") for n in range(12)])
    path = tmp_path / "dead.jsonl"
    client.final = time_text(START_MS + 6)
    scene = Scene(tmp_path, client, lambda: Remembering(refuses={"unknown"}))
    scene.dead_letters = lambda: LinesFile(path, may_go=True)
    await die_before_saving(scene)
    await scene.run()
    assert [letter["event"] for letter in lines(path)] == client.events[:6]
    if fate == "taken away":
        path.unlink()
    elif fate == "emptied":
        path.write_text("")
    client.final = time_text(START_MS + 12)
    await die_before_saving(scene)
    await scene.run()
    assert [letter["event"] for letter in lines(path)] == client.events[0 if fate == "kept" else 6 :]


async def test_events_in_doubt_for_longer_than_the_receiver_remembers_are_not_sent_again(tmp_path: Path) -> None:
    receiver = Remembering(remembers_s=0.0)
    client = ListedEvents(some(3))
    scene = Scene(tmp_path, client, lambda: receiver)
    receiver.failures = ["after"]
    with pytest.raises(InDoubtError, match="--resend-in-doubt"):
        await scene.run()
    receiver.remembers_s = 3600.0
    assert (await scene.run(resends=True)).forwarded == 3


async def test_events_that_surely_did_not_arrive_are_not_in_doubt(tmp_path: Path) -> None:
    receiver = Remembering(remembers_s=0.0)
    client = ListedEvents(some(3))
    receiver.failures = ["before", "before"]
    assert (await Scene(tmp_path, client, lambda: receiver).run()).in_doubt_since_s is None


async def test_forwarder_gives_up_and_says_why(tmp_path: Path) -> None:
    receiver = Remembering(failures=["after"] * 10_000)
    client = ListedEvents(some(3))
    scene = Scene(tmp_path, client, lambda: receiver, retry_for_s=0.01)
    with pytest.raises(GaveUpError, match="timed out"):
        await scene.run()
    assert "Trying again in" in scene.messages[0]


async def test_file_of_another_is_never_cut(tmp_path: Path) -> None:
    output = tmp_path / "theirs.jsonl"
    output.write_text("theirs\n")
    scene = Scene(tmp_path, ListedEvents(some(3)), lambda: JsonlFile(output, 3))
    for _ in range(2):
        with pytest.raises(ReceiverError, match="not of this forwarder"):
            await scene.run()
    assert output.read_text() == "theirs\n"


async def test_file_that_lost_bytes_is_noticed(tmp_path: Path) -> None:
    output = tmp_path / "events.jsonl"
    scene = Scene(tmp_path, ListedEvents(some(3)), lambda: JsonlFile(output, 3))
    await scene.run()
    output.write_text("")
    with pytest.raises(ReceiverError, match="0 bytes, but"):
        await scene.run()
    output.unlink()
    with pytest.raises(ReceiverError, match="Put the file back"):
        await scene.run()


def test_state_serves_one_purpose_and_one_forwarder(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with pytest.raises(StateError, match="--since"), opened(path, {"to": "a"}, None):
        pass
    with opened(path, {"to": "a"}, START):
        with pytest.raises(StateError, match="another forwarder"), opened(path, {"to": "a"}, START):
            pass
        assert read_progress(path)[1].position.timestamp == START
    for purpose, start in (({"to": "b"}, START), ({"to": "a"}, "2026-01-01T00:00:00.000Z")):
        with pytest.raises(StateError, match="a state of its own"), opened(path, purpose, start):
            pass
    with opened(path, {"to": "a"}, None):
        pass


def test_file_that_is_no_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("not a database, but text" * 100)
    with pytest.raises(StateError, match="cannot be read"), opened(path, {}, START):
        pass
    assert path.read_text().startswith("not a database")


@pytest.mark.parametrize("damage", ["NULL", "'{'", "'[]'", "x'ff'", "replace(progress, '2026-', '202V-')"])
def test_state_with_damaged_content_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state"
    with opened(path, {}, START):
        pass
    with closing(sqlite3.connect(path)) as database:
        database.executescript("PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, 'NOT', '')")
        database.execute("PRAGMA writable_schema = RESET")
        database.execute(f"UPDATE forwarder SET progress = {damage}")
        database.commit()
    with pytest.raises(StateError, match="damaged"), opened(path, {}, START):
        pass
    with pytest.raises(StateError, match="damaged"):
        read_progress(path)


def test_status_is_told_after_a_death_in_the_middle_of_a_save(tmp_path: Path) -> None:
    """SQLite must undo the save first, which it cannot on a file that is open for reading."""
    path = tmp_path / "state"
    torn = tmp_path / "torn"
    with opened(path, {}, START):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
        database.execute("BEGIN")
        database.execute("UPDATE forwarder SET progress = '{}'")
        database.executemany("INSERT INTO delivered VALUES (?)", ((f"{number:020d}",) for number in range(2000)))
        for suffix in ("", "-journal"):
            shutil.copy(f"{path}{suffix}", f"{torn}{suffix}")
    assert read_progress(torn)[1].position.timestamp == START


def test_state_forgets_keys_of_old_calls(tmp_path: Path) -> None:
    with opened(tmp_path / "state", {}, START) as state:
        old = listed_event(0)["idempotencyKey"]
        new = listed_event(0, at_ms=START_MS + 4 * 86_400_000)["idempotencyKey"]
        position = state.progress.position._replace(timestamp=time_text(START_MS + 4 * 86_400_000))
        state.save(type(state.progress)(position), [old, new])
        assert state.known([old, new]) == {new}


def test_state_that_lost_its_content_does_not_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.touch()
    with pytest.raises(StateError, match="empty"), opened(path, {}, START):
        pass


async def test_what_was_taken_beside_a_refused_event_is_not_sent_again(tmp_path: Path) -> None:
    """Days may pass until somebody mends the refused event; Stripe forgets ids after one."""
    client = ListedEvents([listed_event(0), listed_event(1, entity="unknown"), listed_event(2)])
    receiver = Remembering(remembers_s=0.0, refuses={"unknown"})
    scene = Scene(tmp_path, client, lambda: receiver)
    for _ in range(2):
        with pytest.raises(RefusedEventError):
            await scene.run()
    receiver.refuses.clear()
    assert (await scene.run()).forwarded == 3
    assert receiver.received == 3 + 1 + 1


async def test_parts_beyond_a_state_from_a_backup_are_adopted(tmp_path: Path) -> None:
    client = ListedEvents(some(20))
    output = tmp_path / "parts"
    client.final = time_text(START_MS + 1)
    scene = Scene(tmp_path, client, lambda: ParquetParts(output, 4))
    await scene.run()
    backup = scene.state_path.read_bytes()
    for final in (3, 4):
        client.final = time_text(START_MS + final)
        await scene.run()
    parts = {path.name: path.read_bytes() for path in output.iterdir()}
    scene.state_path.write_bytes(backup)
    client.final = time_text(START_MS + 100)
    assert (await scene.run()).forwarded == 20
    assert {path.name: path.read_bytes() for path in output.iterdir()}.items() >= parts.items()


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999Z"])
def test_time_that_utc_does_not_have_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="year"):
        time_of(text)
