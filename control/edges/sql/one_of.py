"""`one_of(column, texts)`: IN for any number of texts, passed as one parameter.

`in_` writes one placeholder per text, so each number of texts is a different statement. Both drivers cache a hundred
prepared statements per connection, of 100 kB and more each with hundreds of placeholders.
"""

from collections.abc import Iterable
from typing import Any

import orjson
from sqlalchemy import Boolean, Column, ColumnElement, Text, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class _Members(FunctionElement[Any]):
    """The texts of a JSON array, as rows."""

    inherit_cache = True


@compiles(_Members, "sqlite")
def _in_sqlite(members: _Members, compiler: SQLCompiler, **options: Any) -> str:
    return f"(SELECT value FROM json_each({compiler.process(members.clauses, **options)}))"  # noqa: S608 (a placeholder)


@compiles(_Members, "postgresql")
def _in_postgresql(members: _Members, compiler: SQLCompiler, **options: Any) -> str:
    return f"(SELECT json_array_elements_text(CAST({compiler.process(members.clauses, **options)} AS json)))"


def one_of(column: Column[str], texts: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that the column's value is one of `texts`. It never holds if `texts` is empty."""
    array = literal(orjson.dumps(sorted(set(texts))).decode(), Text())
    return column.op("IN", is_comparison=True, return_type=Boolean())(_Members(array))
