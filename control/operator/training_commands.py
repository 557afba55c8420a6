"""`tollgate training …`: commands on training over the management API (docs/reference/command-line.md#training)."""

import asyncio
import os
import sys

import click

from runtime.environment import http_url


@click.group()
def training() -> None:
    """Training jobs, over the management API. The key comes from TOLLGATE_API_KEY."""


@training.command()
@click.argument("job")
@click.option(
    "--url", envvar="TOLLGATE_URL", default="http://127.0.0.1:8081", show_default=True, help="The management API."
)
def watch(job: str, url: str) -> None:
    """Follow the training job JOB until it has ended and its checkpoints are in the store.

    The exit status is 0 if it completed and 1 otherwise.
    """
    from control.edges.management_client import ManagementError

    api_key = os.environ.get("TOLLGATE_API_KEY", "").strip()  # no flag: others can read a command line
    if not api_key:
        raise click.UsageError("TOLLGATE_API_KEY is not set: a key of type WORKSPACE_MANAGE_ALL is needed")
    try:
        has_completed = asyncio.run(_watch(http_url(url), api_key, job))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    except ManagementError as error:
        raise click.ClickException(str(error)) from None
    sys.exit(0 if has_completed else 1)


async def _watch(url: str, api_key: str, job: str) -> bool:
    from control.edges.management_client import ManagementClient
    from control.operator.training_watch import ProgressPrinter, watch

    client = ManagementClient(url, api_key)
    try:
        printer = ProgressPrinter(lambda text: click.echo(text, nl=False), sys.stdout.isatty())
        return await watch(client, job, printer)
    finally:
        await client.close()
