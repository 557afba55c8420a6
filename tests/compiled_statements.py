"""SQL statements that tests compile once per process: each test has an engine of its own, which would compile all anew.

That is a fifth of a small test's CPU. What is shared is what SQLAlchemy shares among the connections of one engine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Dialect, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from control.edges.sql import database


@contextmanager
def shared_by_engines() -> Iterator[None]:
    """Let the engines that control opens in this process share compiled statements, those of each dialect apart."""
    dialects: dict[type[Dialect], Dialect] = {}
    statements: dict[Any, Any] = {}

    def open_sharing(url: Any, **options: Any) -> AsyncEngine:
        engine = create_async_engine(url, **options)
        sync = engine.sync_engine
        dialect = sync.dialect
        sync.update_execution_options(compiled_cache=statements)
        if type(dialect) in dialects:
            sync.dialect = dialects[type(dialect)]  # statements are looked up by their dialect, too
        else:
            # Only a connection tells a dialect what its server is; an engine that never connects must not lend its own.
            event.listen(sync, "connect", lambda *_: dialects.setdefault(type(dialect), dialect))
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "create_async_engine", open_sharing)
        yield
