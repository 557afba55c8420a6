"""`tollgate backup` and `tollgate restore` (docs/reference/command-line.md#administration)."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.editing.deletion import yes_option
from control.operator.database_commands import ask_or_refuse, data_option, run

if TYPE_CHECKING:
    from control.edges.process.data_directory import DataDirectory

_OTHER_DATABASE = (
    "the database is not in the data directory. Nothing was changed.\nBack it up and restore it with its own tools"
    " (pg_dump, pg_restore), and keep the secret keys with it: docs/operating.md#backup-and-restore"
)


@click.command()
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@data_option
def backup(target: Path, data: Path) -> None:
    """Copy the database and the secret keys of --data to DIR, which must be new or empty, while the product runs.

    Not in it: billing events that no proxy has sent yet, which stay in the journals; counters; checkpoints.
    """
    run(_back_up(target.absolute(), data))


@click.command()
@click.argument("source", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@data_option
@yes_option
def restore(source: Path, data: Path, is_sure: bool) -> None:
    """Put the backup in DIR into --data, in the place of the database there. No `tollgate up` may serve it."""
    run(_restore(source.absolute(), data, is_sure))


async def _back_up(target: Path, data: Path) -> None:
    from control.edges.process import backups
    from control.edges.process.data_directory import DataDirectory

    directory = DataDirectory(data)
    _check_embedded(directory)
    keys, file = _keys_of(directory)
    manifest = backups.make_backup(directory, target, keys, file)
    _print(manifest, target)
    if manifest.unopened:
        text = f"{manifest.unopened} secrets in it cannot be opened by any key that the product has: `tollgate doctor`."
        click.echo(text, err=True)
    if file is None:
        click.echo("The secret keys are not in it: they come from TOLLGATE_SECRET_KEY. Keep them beside it.", err=True)


async def _restore(source: Path, data: Path, is_sure: bool) -> None:
    from control.edges.process import backups
    from control.edges.process.data_directory import DataDirectory, DataDirectoryBusyError
    from control.settings import control_keys
    from runtime.environment import Environment
    from runtime.secret_keys import has_secret_keys

    directory = DataDirectory(data)
    _check_embedded(directory)
    manifest = backups.read_backup(source)
    if directory.path.exists() and directory.is_served():
        raise DataDirectoryBusyError(
            f"{directory.path} is served by a `tollgate up`. Nothing was changed. Stop it, then run this again"
        )
    if directory.database.exists() and not is_sure:
        ask_or_refuse(f"Replace the database in {directory.path} by that of {manifest.created_at}?")
    keys: Sequence[bytes] = control_keys(Environment(os.environ)) if has_secret_keys(os.environ) else ()
    _print(backups.restore_backup(directory, source, keys), source)


def _check_embedded(directory: "DataDirectory") -> None:
    from control.edges.process import up_record
    from control.edges.process.backups import BackupError
    from control.edges.process.data_directory import DataDirectoryError

    if os.environ.get("TOLLGATE_DATABASE_URL"):
        raise BackupError(f"TOLLGATE_DATABASE_URL is set: {_OTHER_DATABASE}")
    try:
        record = up_record.read(directory)
    except DataDirectoryError:
        return
    if not record.has_own_database:
        raise BackupError(f"of this `tollgate up` {_OTHER_DATABASE}")


def _keys_of(directory: "DataDirectory") -> tuple[Sequence[bytes], Path | None]:
    """The keys, and the file that holds them; None if the environment itself does."""
    from control.operator.bootstrap import Database

    keys = Database(directory.path, None, None, os.environ).secret_keys()
    if os.environ.get("TOLLGATE_SECRET_KEY"):
        return keys, None
    file = os.environ.get("TOLLGATE_SECRET_KEY_FILE")
    return keys, Path(file) if file else directory.secret_key


def _print(manifest: Any, where: Path) -> None:
    fields = asdict(manifest)
    summary = {name: fields[name] for name in ("created_at", "tollgate", "schema")}
    click.echo(json.dumps({"backup": str(where), **summary, "files": sorted(manifest.files)}))
