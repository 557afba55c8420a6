"""Looks that find nothing to do cost at most one query: each process of control takes them every second or sooner."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sqlalchemy import event

from control.edges.sql.group_rows import workspaces_of
from control.edges.sql.store import Connection, Store
from control.edges.sql.webhook_rows import due_webhooks


@pytest.mark.parametrize(
    ("look", "most"), [(due_webhooks, 1), (lambda conn: workspaces_of(conn, ()), 0)], ids=["webhooks", "alerts"]
)
async def test_look_that_finds_nothing_is_cheap(
    store: Store, look: Callable[[Connection], Coroutine[Any, Any, Any]], most: int
) -> None:
    statements: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        statements.append(statement)

    async with store.read() as conn:
        event.listen(store.engine.sync_engine, "before_cursor_execute", note)
        assert not await look(conn)
        event.remove(store.engine.sync_engine, "before_cursor_execute", note)
    assert len(statements) == most
