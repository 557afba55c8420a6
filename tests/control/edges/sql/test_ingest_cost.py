"""The cost of billing events in control, in counts that no processor changes."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import orjson
from sqlalchemy import event as sql_event

from control.api.internal_events import parse_batch
from control.edges.sql.store import Store
from tests.control.billing import clock_ms, event, ingest_and_reader

MOST_CALLS_PER_EVENT = 1.5
MOST_STATEMENTS = 6
SIZES = (500, 1500)


@contextmanager
def python_calls() -> Iterator[Callable[[], int]]:
    """Count the Python functions that are called meanwhile, in this thread and in those that it starts."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@contextmanager
def statements_of(store: Store) -> Iterator[list[str]]:
    """Collect the statements that are sent meanwhile."""
    statements: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_more: Any) -> None:
        statements.append(statement)

    sql_event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sql_event.remove(store.engine.sync_engine, "before_cursor_execute", note)


async def body_of(store: Store, first: int, size: int) -> bytes:
    now_ms = await clock_ms(store)
    more = {"source": "REPORTED", "group_path": "root/grp_1/"}
    return orjson.dumps({"events": [event(first + n, now_ms, **more).to_wire() for n in range(size)]})


async def test_events_of_a_batch_share_its_statements_and_its_calls(store: Store) -> None:
    ingest = ingest_and_reader(store)[0].ingest
    costs = []
    for size in (10, *SIZES):  # the first one prepares statements
        body = await body_of(store, size * 10_000, size)
        with statements_of(store) as statements, python_calls() as calls:
            batch, after = parse_batch(body)
            assert await ingest.commit(batch, after) == size
        costs.append((len(statements), calls()))
    few, many = costs[1:]
    assert few[0] == many[0] <= MOST_STATEMENTS, costs
    assert (many[1] - few[1]) / (SIZES[1] - SIZES[0]) <= MOST_CALLS_PER_EVENT, costs
