"""`tollgate events export`: reads its flags, opens the file and says what was written."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.connection import Connection, over_api
from commands.errors import ManagementError
from commands.event_export.export import Position, Selection, export
from commands.event_export.formats import FORMATS
from commands.output import json_text
from commands.times import time_from

if TYPE_CHECKING:
    from commands.edges.export_file import ExportFile


@click.command("export")
@click.option("--since", help="The first moment, inclusive: ISO 8601, or so long ago (24h, 7d).")
@click.option("--until", help="The end, exclusive; by default as late as the events are final.")
@click.option("--entity", "entities", multiple=True, help="Only of the group with this external id; may be repeated.")
@click.option("--key", "key_prefixes", multiple=True, help="Only of the key with this prefix; may be repeated.")
@click.option("--format", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file, beside which FILE.state keeps the position; without it, standard output.",
)
@over_api
def export_events(connection: Connection, output: Path | None, **asked: Any) -> None:
    """Write billing events, oldest first.

    With --output, the same command again goes on where the last one ended, also after a crash: each event is in the
    file exactly once.
    """
    until = asked.pop("until")
    until = None if until is None else time_from(until, "--until")
    selection = Selection(until, list(asked["entities"]), list(asked["key_prefixes"]), asked["format"])
    if output is None or str(output) == "-":
        at = _begin(asked["since"], until)
        connection.run(lambda client: export(client, selection, at, _StandardOutput()))
    else:
        _into_file(connection, selection, asked["since"], output)


class _StandardOutput:
    def append(self, text: str, position: Any) -> None:
        click.echo(text, nl=False)


def _into_file(connection: Connection, selection: Selection, since: str | None, output: Path) -> None:
    from commands.edges.export_file import opened

    asked = asdict(replace(selection, until=None)) | {"since": since}
    try:
        with opened(output) as file:
            at = _position(file, output, asked, selection.until)
            end = connection.run(lambda client: export(client, selection, at, file))
    except ManagementError as error:
        raise click.ClickException(str(error)) from None
    _tell(connection, output, at, end)


def _position(file: "ExportFile", output: Path, asked: dict[str, Any], until: str | None) -> Position:
    """Where the file's export goes on, or begins."""
    if file.kept is not None:
        _check_same(output, file.kept.asked, asked)
        return Position(**file.kept.position)
    at = _begin(asked["since"], until)
    file.begin(asked, asdict(at))
    return at


def _begin(since: str | None, until: str | None) -> Position:
    if since is None:
        raise click.UsageError("--since is needed to begin an export")
    start = time_from(since, "--since")
    if until is not None and until <= start:
        raise click.UsageError("--until must be after --since")
    return Position(start)


def _check_same(output: Path, kept: Any, asked: dict[str, Any]) -> None:
    """Refuse to mix two exports in one file. `--until` may differ, and `--since` may be left out."""
    differing = [name for name, value in asked.items() if kept.get(name) != value and value is not None]
    if differing:
        flags = {"entities": "--entity", "key_prefixes": "--key"}
        names = ", ".join(flags.get(name, f"--{name}") for name in differing)
        raise click.ClickException(f"{output} was begun with other values of {names}. Give the same, or another file")


def _tell(connection: Connection, output: Path, before: Position, after: Position) -> None:
    if connection.as_json:
        told = {"output": str(output), "new_events": after.events - before.events, "events": after.events}
        click.echo(json_text(told | {"until": after.start}))
    else:
        new = after.events - before.events
        click.echo(f"{output}: {new} new events, {after.events} in all, up to {after.start}")
