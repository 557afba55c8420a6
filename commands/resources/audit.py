"""`tollgate audit`: who changed what (docs/reference/command-line.md#audit-trail)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from commands.connection import Connection, over_api
from commands.exports.command import output_option, run_export, since_option
from commands.exports.exporter import Selection
from commands.exports.listing import FORMATS, JSON_LINES, Listing, compact_json
from commands.lists import limit_option, print_page
from commands.output import Column
from commands.times import time_from

PATH = "/v1/audit_events"
SETTLED = "1m"
"""The age from which on changes have committed."""
_actor_option = click.option("--actor", help="Only by the key with this prefix, or by `cli`.")


@click.group()
def audit() -> None:
    """List and export who changed what, when."""


@audit.command("list")
@since_option
@click.option("--until", help="The end, exclusive.")
@_actor_option
@limit_option
@over_api
def list_changes(connection: Connection, since: str | None, until: str | None, actor: str | None, limit: int) -> None:
    """Print the newest changes. `--json` shows each resource before and after; `export` writes all of them."""
    window = {"start_time": _time(since, "--since"), "end_time": _time(until, "--until")}

    answer = connection.run(lambda client: client.call("GET", PATH, limit=limit, actor=actor, **window))
    print_page(connection, answer, _COLUMNS, "raise --limit, move --until, or use `tollgate audit export`")


@audit.command("export")
@since_option
@click.option("--until", default=SETTLED, help="The end, exclusive; by default a minute ago, with --output no later.")
@_actor_option
@click.option("--format", type=click.Choice(FORMATS), default=JSON_LINES, show_default=True)
@output_option
@over_api
def export_changes(connection: Connection, output: Path | None, **flags: Any) -> None:
    """Write the changes of a window, newest first.

    With --output, the same command again goes on where the last one ended, also after a crash: each change is in the
    file exactly once.
    """
    settled = time_from(SETTLED, "--until")
    until = time_from(flags.pop("until"), "--until")
    if output is not None:  # a change of a later moment may not have committed, and would be missing for ever
        until = min(until, settled)
    run_export(connection, CHANGES, Selection({"actor": flags["actor"]}, flags["format"], until), output, flags)


def _time(text: str | None, flag: str) -> str | None:
    return None if text is None else time_from(text, flag)


_COLUMNS = (
    Column("TIME", lambda change: change["timestamp"]),
    Column("ACTOR", lambda change: change["actor"]),
    Column("ACTION", lambda change: change["action"]),
    Column("RESOURCE", lambda change: change["resource"]),
    Column("REQUEST", lambda change: change["request_id"]),
)
_TEXTS = ("timestamp", "id", "actor", "action", "resource", "request_id")
_SIDES = ("before", "after")


def _row(change: Mapping[str, Any]) -> list[Any]:
    sides = ["" if change[name] is None else compact_json(change[name]) for name in _SIDES]
    return [*(change[name] or "" for name in _TEXTS), *sides]


CHANGES = Listing("changes", PATH, (*_TEXTS, *_SIDES), _row)
