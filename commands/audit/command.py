"""`tollgate audit`: who changed what (docs/reference/command-line.md#audit-trail)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.audit.export import PATH, SETTLED, Position, Selection, export, of_settled
from commands.audit.formats import FORMATS
from commands.connection import Client, Connection, over_api
from commands.errors import ManagementError
from commands.output import Column, json_text, table
from commands.times import time_from

if TYPE_CHECKING:
    from commands.edges.export_file import ExportFile

_MOST_PER_PAGE = 1000
_actor_option = click.option("--actor", help="Only by the key with this prefix, or by `cli`.")


@click.group()
def audit() -> None:
    """Who changed what, when."""


@audit.command("list")
@click.option("--since", help="The first moment, inclusive: ISO 8601, or so long ago (24h, 7d).")
@click.option("--until", help="The end, exclusive.")
@_actor_option
@click.option(
    "--limit", type=click.IntRange(1, _MOST_PER_PAGE), default=100, show_default=True, help="At most so many."
)
@over_api
def list_changes(connection: Connection, since: str | None, until: str | None, actor: str | None, limit: int) -> None:
    """Print the newest changes. `--json` shows each resource before and after; `export` writes all of them."""
    window = {"start_time": _time(since, "--since"), "end_time": _time(until, "--until")}

    async def ask(client: Client) -> Any:
        return await client.call("GET", PATH, limit=limit, actor=actor, **window)

    answer = connection.run(ask)
    if connection.as_json:
        click.echo(json_text(answer))
        return
    click.echo(table(_COLUMNS, answer["items"]))
    if answer["pagination"]["has_more"]:
        click.echo("There are more: raise --limit, move --until, or use `tollgate audit export`.", err=True)


@audit.command("export")
@click.option("--since", help="The first moment, inclusive: ISO 8601, or so long ago (24h, 7d).")
@click.option("--until", default=SETTLED, help="The end, exclusive; by default a minute ago, with --output no later.")
@_actor_option
@click.option("--format", type=click.Choice(FORMATS), default=FORMATS[1], show_default=True)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file, beside which FILE.state keeps the position; without it, standard output.",
)
@over_api
def export_changes(connection: Connection, output: Path | None, **asked: Any) -> None:
    """Write the changes of a window, newest first.

    With --output, the same command again goes on where the last one ended, also after a crash: each change is in the
    file exactly once.
    """
    selection = Selection(time_from(asked.pop("until"), "--until"), asked["actor"], asked["format"])
    if output is None or str(output) == "-":
        at = _begin(asked["since"])
        connection.run(lambda client: export(client, selection, at, _StandardOutput()))
    else:
        _into_file(connection, selection, asked, output)


class _StandardOutput:
    def append(self, text: str, position: Any) -> None:
        click.echo(text, nl=False)


def _into_file(connection: Connection, selection: Selection, asked: dict[str, Any], output: Path) -> None:
    from commands.edges.export_file import opened

    selection = of_settled(selection, time_from(SETTLED, "--until"))
    try:
        with opened(output) as file:
            before = _position(file, output, asked)
            after = connection.run(lambda client: export(client, selection, before, file))
    except ManagementError as error:
        raise click.ClickException(str(error)) from None
    new = after.changes - before.changes
    if connection.as_json:
        told = {"output": str(output), "new_changes": new, "changes": after.changes, "until": after.start}
        click.echo(json_text(told))
    else:
        click.echo(f"{output}: {new} new changes, {after.changes} in all, up to {after.start}")


def _position(file: "ExportFile", output: Path, asked: dict[str, Any]) -> Position:
    """Where the file's export goes on, or begins. Refuses to mix two exports; `--since` may be left out."""
    if file.kept is None:
        at = _begin(asked["since"])
        file.begin(asked, {"start": at.start})
        return at
    kept = file.kept.asked
    differing = [name for name in asked if kept.get(name) != asked[name] and (name != "since" or asked[name])]
    if differing:
        names = ", ".join(f"--{name}" for name in differing)
        raise click.ClickException(f"{output} was begun with other values of {names}. Give the same, or another file")
    return Position(**file.kept.position)


def _begin(since: str | None) -> Position:
    if since is None:
        raise click.UsageError("--since is needed to begin an export")
    return Position(time_from(since, "--since"))


def _time(text: str | None, flag: str) -> str | None:
    return None if text is None else time_from(text, flag)


_COLUMNS = (
    Column("TIME", lambda change: change["timestamp"]),
    Column("ACTOR", lambda change: change["actor"]),
    Column("ACTION", lambda change: change["action"]),
    Column("RESOURCE", lambda change: change["resource"]),
    Column("REQUEST", lambda change: change["request_id"]),
)
