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

_MOST_STATEMENTS = 2_000


@contextmanager
def shared_by_engines() -> Iterator[None]:
    """Let the engines that control opens in this process share compiled statements, those of each dialect apart."""
    first_engines: dict[type[Dialect], AsyncEngine] = {}

    def open_sharing(url: Any, **options: Any) -> AsyncEngine:
        engine = create_async_engine(url, query_cache_size=_MOST_STATEMENTS, **options)
        sync = engine.sync_engine
        kind = type(sync.dialect)
        if (first := first_engines.get(kind)) is None:
            # Only a connection tells a dialect what its server is; an engine that never connects must not lend its own.
            event.listen(sync, "connect", lambda *_: first_engines.setdefault(kind, engine))
        else:
            # Statements are looked up by their dialect, too.
            sync.dialect = first.sync_engine.dialect
            sync._compiled_cache = first.sync_engine._compiled_cache
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "create_async_engine", open_sharing)
        yield
