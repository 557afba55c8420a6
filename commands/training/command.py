"""`tollgate training …`: commands on training over the management API (docs/reference/command-line.md#training)."""

import sys

import click

from commands.connection import Connection, over_api
from commands.editing import known_names
from commands.editing.paths import path
from commands.output import Column
from commands.progress import ProgressPrinter
from commands.training.jobs import jobs
from commands.training.projects import projects
from commands.training.tables import print_table


@click.group()
def training() -> None:
    """Training projects and jobs."""


@training.command()
@click.argument("job", shell_complete=known_names.training_jobs)
@over_api
def watch(job: str, connection: Connection) -> None:
    """Follow the training job JOB until it has ended and its checkpoints are in the store.

    The exit status is 0 if it completed and 1 otherwise.
    """
    from commands.training.watch import watch

    printer = ProgressPrinter(lambda text: click.echo(text, nl=False), sys.stdout.isatty())
    sys.exit(0 if connection.run(lambda client: watch(client, job, printer)) else 1)


@training.command("instance-types")
@over_api
def instance_types(connection: Connection) -> None:
    """Print the most that one node of a job can get."""
    answer = connection.run(lambda client: client.call("GET", path("training_instance_types")))
    print_table(connection, answer, "instance_types", _INSTANCE_TYPE_COLUMNS)


_INSTANCE_TYPE_COLUMNS = (
    Column("NAME", lambda one: one["name"]),
    Column("ID", lambda one: one["id"]),
    Column("MILLICPU", lambda one: one["millicpu_limit"]),
    Column("MEMORY MIB", lambda one: one["memory_limit_mib"]),
    Column("GPUS", lambda one: one["gpu_count"]),
    Column("GPU", lambda one: one["gpu_type"]),
)

training.add_command(jobs)
training.add_command(projects)
