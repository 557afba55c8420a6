"""`tollgate doctor` (docs/reference/command-line.md#doctor)."""

import asyncio
import os
import sys
from pathlib import Path

import click

from control.operator.database_commands import DEFAULT_DATA


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, readable=False, path_type=Path),  # a finding tells of what cannot be read
    envvar="TOLLGATE_DATA",
    default=DEFAULT_DATA,
    show_default=True,
    help="The data directory of `tollgate up`.",
)
@click.option("--database-url", envvar="TOLLGATE_DATABASE_URL", help="The database; without it, the one in --data.")
@click.option("--redis-url", envvar="TOLLGATE_REDIS_URL", help="The counters' Redis; without it, the one in --data.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(data: Path, database_url: str | None, redis_url: str | None, as_json: bool) -> None:
    """Check settings, Redis, database, clocks, disks, upstreams and processes, and say what to mend.

    Reads the environment and --data as `up` does, and changes nothing. The exit status is 1 if something is at fault;
    warnings are allowed.
    """
    from control.edges.process.data_directory import DataDirectory, DataDirectoryError
    from control.operator.doctor import findings
    from control.operator.doctor.examination import examine
    from control.operator.doctor.installation import Installation

    try:
        installation = Installation(dict(os.environ), DataDirectory(data), database_url or None, redis_url or None)
        results = asyncio.run(examine(installation))
    except DataDirectoryError as error:
        raise click.ClickException(str(error)) from None
    click.echo(findings.as_json(results) if as_json else "\n".join(findings.as_lines(results)))
    sys.exit(0 if findings.is_healthy(results) else 1)
