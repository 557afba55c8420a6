"""`tollgate training jobs`: jobs of all projects, by their ids."""

from typing import Any, TextIO

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, file_option, only
from commands.editing.deletion import ask_before, yes_option
from commands.editing.paths import path
from commands.editing.shown import call_and_print, print_answer
from commands.log_lines import log_options, print_log
from commands.output import Column
from commands.times import TIMES, time_from
from commands.training.metrics import read_metrics
from commands.training.tables import print_table

STATUS_PREFIX = "TRAINING_JOB_"
_job = click.argument("job", shell_complete=known_names.training_jobs)


@click.group()
def jobs() -> None:
    """Training jobs."""


@jobs.command("list")
@click.option("--project", help="Of this project, by name or id.")
@click.option("--status", "statuses", multiple=True, help="With this status, such as RUNNING; may be repeated.")
@click.option("--oldest-first", is_flag=True, help="The newest come first otherwise.")
@over_api
def list_jobs(project: str | None, statuses: tuple[str, ...], oldest_first: bool, connection: Connection) -> None:
    """Print training jobs: at most 1000."""
    names_of_statuses = [STATUS_PREFIX + status.upper().removeprefix(STATUS_PREFIX) for status in statuses]
    order = [{"field": "created_at", "order": "asc"}] if oldest_first else None
    body = only(statuses=names_of_statuses or None, order_by=order)

    async def work(client: Client) -> Any:
        if project is not None:
            body["project_id"] = (await names.training_project(client, project))["id"]
        return await client.call("POST", path("training_jobs", "search"), body)

    print_table(connection, connection.run(work), "training_jobs", _COLUMNS)


@jobs.command()
@_job
@over_api
def get(job: str, connection: Connection) -> None:
    """Print one job."""
    print_answer(connection, connection.run(lambda client: names.training_job(client, job)))


@jobs.command()
@click.argument("project", metavar="PROJECT", shell_complete=known_names.training_projects)
@click.option("--name", help="The job's name.")
@click.option("--cpus", "cpu_count", type=int, help="CPUs of each node.")
@click.option("--memory", help="Memory of each node, such as 2Gi.")
@click.option("--nodes", "node_count", type=int, help="How many nodes.")
@click.option("--run", "start_commands", multiple=True, help="A line for /bin/sh that each node runs; may be repeated.")
@file_option
@over_api
def create(project: str, connection: Connection, file: TextIO | None, **flags: Any) -> None:
    """Create a job in PROJECT, by name or id. -f takes {"training_job": {…}}."""
    compute = only(**{name: flags[name] for name in ("cpu_count", "memory", "node_count")})
    runtime = only(start_commands=list(flags["start_commands"]) or None)
    members = only(name=flags["name"], compute=compute or None, runtime=runtime or None)
    body = body_of(file, {"training_job": members} if members else {})

    async def work(client: Client) -> Any:
        id = (await names.training_project(client, project))["id"]
        return await client.call("POST", path("training_projects", id, "jobs"), body)

    print_answer(connection, connection.run(work))


@jobs.command()
@_job
@click.option("--priority", type=int, help="Higher ones start first.")
@click.option("--availability", "availability_model", help="dedicated or spot.")
@over_api
def update(job: str, priority: int | None, availability_model: str | None, connection: Connection) -> None:
    """Move a job that waits in the queue."""
    body = only(priority=priority, availability_model=availability_model)
    if not body:
        raise click.UsageError("nothing to change: give --priority or --availability")

    async def work(client: Client) -> Any:
        return await client.call("PATCH", await _place(client, job), body)

    print_answer(connection, connection.run(work))


@jobs.command()
@_job
@over_api
def queue(job: str, connection: Connection) -> None:
    """Print where a job is in the queue, and why it waits."""
    call_and_print(connection, "GET", path("training", "jobs", job, "queue_context"))


@jobs.command()
@_job
@over_api
def stop(job: str, connection: Connection) -> None:
    """Stop a job: SIGTERM, later SIGKILL."""
    _call(connection, "POST", job, "stop")


@jobs.command()
@_job
@over_api
def recreate(job: str, connection: Connection) -> None:
    """Create a new job with this one's configuration, from its last checkpoint."""
    _call(connection, "POST", job, "recreate")


@jobs.command()
@_job
@yes_option
@over_api
def delete(job: str, is_sure: bool, connection: Connection) -> None:
    """Delete a job that has ended, with its log and checkpoints."""
    ask_before(f"training job {job} with its checkpoints", is_sure)
    _call(connection, "DELETE", job)


@jobs.command()
@_job
@log_options
@over_api
def logs(job: str, connection: Connection, **query: Any) -> None:
    """Print the latest lines that a job's nodes printed, the oldest first."""
    print_log(connection, lambda client: _place(client, job, "logs"), query)


@jobs.command()
@_job
@click.option("--name", help="This metric alone.")
@click.option("--since", help=f"The first moment: {TIMES}.")
@over_api
def metrics(job: str, name: str | None, since: str | None, connection: Connection) -> None:
    """Print the last point of each metric of a job; with --json, all points."""
    query = only(name=name, since=None if since is None else time_from(since, "--since"))

    async def work(client: Client) -> Any:
        return {"metrics": await read_metrics(client, await _place(client, job, "metrics"), **query)}

    print_table(connection, connection.run(work), "metrics", _METRIC_COLUMNS)


@jobs.command()
@_job
@over_api
def checkpoints(job: str, connection: Connection) -> None:
    """Print a job's checkpoints, the oldest first."""

    async def work(client: Client) -> Any:
        return await client.call("GET", await _place(client, job, "checkpoints"))

    print_table(connection, connection.run(work), "checkpoints", _CHECKPOINT_COLUMNS)


@jobs.command()
@_job
@click.argument("checkpoint")
@over_api
def files(job: str, checkpoint: str, connection: Connection) -> None:
    """Print the files of a checkpoint, each with a link that opens without credentials for an hour."""

    async def work(client: Client) -> Any:
        return await client.call("GET", await _place(client, job, "checkpoints", checkpoint, "files"))

    print_table(connection, connection.run(work), "files", _FILE_COLUMNS)


@jobs.command()
@_job
@over_api
def session(job: str, connection: Connection) -> None:
    """Open an interactive session on a job that runs, and print where it answers and its code."""

    async def work(client: Client) -> Any:
        await client.call("POST", await _place(client, job, "interactive_session"))
        return await client.call("GET", await _place(client, job, "auth_codes"))

    print_table(connection, connection.run(work), "auth_codes", _SESSION_COLUMNS)


async def _place(client: Client, job: str, *below: str) -> str:
    item = await names.training_job(client, job)
    return path("training_projects", item["training_project_id"], "jobs", item["id"], *below)


def _call(connection: Connection, method: str, job: str, *below: str) -> None:
    async def work(client: Client) -> Any:
        return await client.call(method, await _place(client, job, *below))

    print_answer(connection, connection.run(work))


def _last(field: str) -> Any:
    def cell(metric: Any) -> Any:
        return metric["points"][-1][field] if metric["points"] else None

    return cell


_COLUMNS = (
    Column("ID", lambda job: job["id"]),
    Column("NAME", lambda job: job["name"]),
    Column("PROJECT", lambda job: job["training_project"]["name"]),
    Column("STATUS", lambda job: job["current_status"].removeprefix(STATUS_PREFIX)),
    Column("NODES", lambda job: job["node_count"]),
    Column("CREATED", lambda job: job["created_at"]),
    Column("ERROR", lambda job: job["error_message"]),
)
_METRIC_COLUMNS = (
    Column("METRIC", lambda metric: metric["name"]),
    Column("POINTS", lambda metric: len(metric["points"])),
    Column("STEP", _last("step")),
    Column("VALUE", _last("value")),
    Column("TIME", _last("timestamp")),
)
_CHECKPOINT_COLUMNS = (
    Column("ID", lambda checkpoint: checkpoint["checkpoint_id"]),
    Column("TYPE", lambda checkpoint: checkpoint["checkpoint_type"]),
    Column("BYTES", lambda checkpoint: checkpoint["size_bytes"]),
    Column("STATUS", lambda checkpoint: checkpoint["sync_status"]),
    Column("CREATED", lambda checkpoint: checkpoint["created_at"]),
)
_FILE_COLUMNS = (
    Column("PATH", lambda file: file["path"]),
    Column("BYTES", lambda file: file["size_bytes"]),
    Column("SHA256", lambda file: file["sha256"]),
    Column("URL", lambda file: file["url"]),
)
_SESSION_COLUMNS = (
    Column("NODE", lambda session: session["replica_id"]),
    Column("CODE", lambda session: session["auth_code"]),
    Column("URL", lambda session: session["auth_url"]),
    Column("EXPIRES", lambda session: session["expires_at"]),
)
