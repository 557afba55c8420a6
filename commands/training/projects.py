"""`tollgate training projects`: names for training jobs that belong together."""

from typing import TextIO

import click

from commands.connection import Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, file_option
from commands.editing.deletion import ask_before, yes_option
from commands.editing.paths import path
from commands.editing.shown import call_and_print, print_answer
from commands.output import Column
from commands.training.tables import print_table

PROJECTS = path("training_projects")
_project = click.argument("project", metavar="NAME|ID", shell_complete=known_names.training_projects)


@click.group()
def projects() -> None:
    """Training projects."""


@projects.command("list")
@over_api
def list_projects(connection: Connection) -> None:
    """Print all projects, the newest first."""
    answer = connection.run(lambda client: client.call("GET", PROJECTS))
    print_table(connection, answer, "training_projects", _COLUMNS)


@projects.command()
@_project
@over_api
def get(project: str, connection: Connection) -> None:
    """Print one project."""
    print_answer(connection, connection.run(lambda client: names.training_project(client, project)))


@projects.command()
@click.argument("name", required=False)
@file_option
@over_api
def create(name: str | None, file: TextIO | None, connection: Connection) -> None:
    """Create a project, or find the one of that name."""
    members = {} if name is None else {"training_project": {"name": name}}
    call_and_print(connection, "POST", PROJECTS, body_of(file, members))


@projects.command()
@_project
@yes_option
@over_api
def delete(project: str, is_sure: bool, connection: Connection) -> None:
    """Delete a project whose jobs have ended, with its jobs and their checkpoints."""
    item = connection.run(lambda client: names.training_project(client, project))
    ask_before(f"training project {item['name']} with its jobs and checkpoints", is_sure)
    call_and_print(connection, "DELETE", path("training_projects", item["id"]))


_COLUMNS = (
    Column("NAME", lambda project: project["name"]),
    Column("ID", lambda project: project["id"]),
    Column("LATEST JOB", lambda project: (project["latest_job"] or {}).get("current_status")),
    Column("UPDATED", lambda project: project["updated_at"]),
)
