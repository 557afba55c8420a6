"""`tollgate training …`: commands on training over the management API (docs/reference/command-line.md#training)."""

import sys

import click

from commands.connection import Connection, over_api


@click.group()
def training() -> None:
    """Training jobs."""


@training.command()
@click.argument("job")
@over_api
def watch(job: str, connection: Connection) -> None:
    """Follow the training job JOB until it has ended and its checkpoints are in the store.

    The exit status is 0 if it completed and 1 otherwise.
    """
    from commands.training.watch import ProgressPrinter, watch

    printer = ProgressPrinter(lambda text: click.echo(text, nl=False), sys.stdout.isatty())
    sys.exit(0 if connection.run(lambda client: watch(client, job, printer)) else 1)
