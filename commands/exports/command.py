"""The common part of the commands `export`: flags, the file or standard output, and the report at the end."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.connection import Connection
from commands.errors import ManagementError
from commands.exports.exporter import Exporter, Position, Selection
from commands.exports.listing import Listing
from commands.output import json_text
from commands.times import TIMES, time_from

if TYPE_CHECKING:
    from commands.edges.export_file import ExportFile

since_option = click.option("--since", help=f"The first moment, inclusive: {TIMES}.")
output_option = click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=lambda _context, _option, path: None if str(path) == "-" else path,
    help="A file, beside which FILE.state keeps the position; without it, standard output.",
)


def run_export(
    connection: Connection, listing: Listing, selection: Selection, output: Path | None, flags: Mapping[str, Any]
) -> None:
    """Export to the file, or to standard output. `flags`: those that a later run must repeat."""
    if output is None:
        at = _first_position(flags)
        connection.run(lambda client: Exporter(client, listing, selection, _StandardOutput()).run(at))
        return
    from commands.edges.export_file import opened

    try:
        with opened(output) as file:
            before = _position(file, output, listing, flags)
            after = connection.run(lambda client: Exporter(client, listing, selection, file).run(before))
    except ManagementError as error:
        raise click.ClickException(str(error)) from None
    _report(connection, output, listing.noun, (before, after))


class _StandardOutput:
    def append(self, text: str, position: Any) -> None:
        click.echo(text, nl=False)


def _position(file: "ExportFile", output: Path, listing: Listing, flags: Mapping[str, Any]) -> Position:
    """Return where the file's export goes on, or begin it."""
    if file.state is not None:
        _check_same(output, file.state.flags, flags)
        return Position.from_state(file.state.position, listing.noun)
    at = _first_position(flags)
    file.begin(flags, at.state(listing.noun))
    return at


def _first_position(flags: Mapping[str, Any]) -> Position:
    if flags["since"] is None:
        raise click.UsageError("--since is needed to begin an export")
    return Position(time_from(flags["since"], "--since"))


def _check_same(output: Path, before: Mapping[str, Any], flags: Mapping[str, Any]) -> None:
    """Refuse to mix two exports in one file. `--until` may differ, and `--since` may be left out."""
    differing = [name for name in flags if before.get(name) != flags[name] and (name != "since" or flags[name])]
    if differing:
        flag_names = {option.name: option.opts[0] for option in click.get_current_context().command.params}
        names = ", ".join(flag_names[name] for name in differing)
        raise click.ClickException(f"{output} was begun with other values of {names}. Give the same, or another file")


def _report(connection: Connection, output: Path, noun: str, run: tuple[Position, Position]) -> None:
    """Say how many items the run wrote between its two positions."""
    before, after = run
    new = after.count - before.count
    if connection.as_json:
        figures = {f"new_{noun}": new, noun: after.count, "until": after.start}
        click.echo(json_text({"output": str(output), **figures}))
    else:
        click.echo(f"{output}: {new} new {noun}, {after.count} in all, up to {after.start}")
