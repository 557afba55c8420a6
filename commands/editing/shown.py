"""One answer of the API, as JSON for scripts or as lines of name and value for people."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from commands.connection import Connection
from commands.output import cell_text, json_text


def print_answer(connection: Connection, answer: Mapping[str, Any]) -> None:
    click.echo(json_text(answer) if connection.as_json else details(answer))


def call_and_print(connection: Connection, method: str, path: str, body: Any = None) -> None:
    """One call whose answer is printed."""
    print_answer(connection, connection.run(lambda client: client.call(method, path, body)))


def details(answer: Mapping[str, Any]) -> str:
    """A line per member; members of members by their path; an item of a list per line. A lone object is unwrapped."""
    inner = next(iter(answer.values()), None)
    rows = list(_rows("", inner if len(answer) == 1 and isinstance(inner, Mapping) else answer))
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name.ljust(width)}  {cell_text(value)}".rstrip() for name, value in rows)


def _rows(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, member in value.items():
            yield from _rows(f"{prefix}.{name}" if prefix else name, member)
    elif isinstance(value, list) and value:
        for place, item in enumerate(value):
            yield (prefix if place == 0 else ""), item
    else:
        yield prefix, None if value in ([], {}) else value
