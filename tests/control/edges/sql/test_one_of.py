"""However many are asked for, the statements are few: SQLAlchemy and the drivers keep hundreds of those they have seen.

On a soak's 1 600 events a second each batch of another size took 130 kB for good.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from sqlalchemy import event as happening
from sqlalchemy import select

from control.edges.sql import group_rows, webhook_rows
from control.edges.sql.events.rows import in_widths, page_of_events
from control.edges.sql.one_of import one_of
from control.edges.sql.store import Store
from control.edges.sql.tables import events
from control.records.events import EventWindow
from control.resources.webhook_messages import new_delivery, outbox
from policy.billing import BillingEvent
from tests.control.billing import FAR_MS, event, event_key, ingest_and_reader

COUNTS = (1, 2, 3, 5, 8, 13, 21, 34, 70)
LATER_COUNTS = (4, 6, 7, 9, 30, 33, 40, 69)
"""Numbers between those of `COUNTS`: nothing else about these statements is new."""


@contextmanager
def statements_of(store: Store) -> Iterator[set[str]]:
    """The text of each statement meanwhile."""
    statements: set[str] = set()

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.add(statement)

    happening.listen(store.engine.sync_engine, "before_cursor_execute", note)
    yield statements
    happening.remove(store.engine.sync_engine, "before_cursor_execute", note)


def many(count: int, first: int = 0) -> list[BillingEvent]:
    """Events, each of another workspace, entity and key."""
    numbers = range(first, first + count)
    return [
        event(n, workspace_id=f"ws_{n}", external_entity_id=f"customer-{n}", api_key_prefix=f"tg_key{n:08}")
        for n in numbers
    ]


async def take(store: Store, count: int) -> None:
    ingest, _ = ingest_and_reader(store, outbox=outbox)
    await ingest.commit(many(count, first=count * 1000))


async def page_by_entity(store: Store, count: int) -> None:
    window = EventWindow("ws_1", 0, FAR_MS, (), tuple(f"customer-{n}" for n in range(count)))
    async with store.read() as conn:
        await page_of_events(conn, window, None, 10)


async def page_by_key(store: Store, count: int) -> None:
    """Each of these keys has an event."""
    window = EventWindow("ws_1", 0, FAR_MS, tuple(f"tg_key{n:08}" for n in range(count)))
    async with store.read() as conn:
        assert len(await page_of_events(conn, window, (0, ""), 100)) == count


async def groups(store: Store, count: int) -> None:
    async with store.read() as conn:
        await group_rows.load_records(conn, [f"grp_{n}" for n in range(count)])


async def events_to_tell(store: Store, count: int) -> None:
    message = new_delivery("whk_1", "API_BILLING_USAGE", [event_key(n) for n in range(count)], 0)
    async with store.read() as conn:
        assert len(await webhook_rows.load_delivery_events(conn, [message])) == count


WORK = {
    "an ingest": take,
    "a page by entity": page_by_entity,
    "a page by key": page_by_key,
    "groups": groups,
    "events to tell": events_to_tell,
}


@pytest.mark.parametrize("name", WORK)
async def test_another_number_is_not_another_statement(store: Store, name: str) -> None:
    new_events = [event(n, external_entity_id=f"customer-{n}", api_key_prefix=f"tg_key{n:08}") for n in range(100)]
    await ingest_and_reader(store)[0].commit(new_events)
    with statements_of(store) as first:
        for count in COUNTS:
            await WORK[name](store, count)
    with statements_of(store) as later:
        for count in LATER_COUNTS:
            await WORK[name](store, count)
    assert later
    assert later <= first


async def test_one_of_finds_those_and_no_others(store: Store) -> None:
    odd = ["plain", "quote'\"", "back\\slash", "é😀", "", "[1]", "comma,comma"]
    await ingest_and_reader(store)[0].commit([event(n, request_id=text) for n, text in enumerate(odd)])
    column = events.c.request_id
    async with store.read() as conn:

        async def found(texts: list[str]) -> set[str]:
            return set((await conn.execute(select(column).where(one_of(column, texts)))).scalars())

        assert await found(odd) == set(odd)
        for text in odd:
            assert await found([text, "nobody"]) == {text}
        assert await found([]) == set()
        assert await found([orjson.dumps(odd).decode()]) == set()


def test_ranges_come_in_few_widths_and_none_is_lost() -> None:
    for count in range(100):
        ranges = [(f"customer-{n}", f"key-{n}") for n in range(count)]
        parts = list(in_widths(ranges))
        assert [one for part in parts for one in part if one != ("", "")] == ranges
        assert {len(part) for part in parts} <= {1, 4, 32}
    assert list(in_widths([()])) == [[()]]
