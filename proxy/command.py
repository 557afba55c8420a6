"""`tollgate proxy` runs this machine's data plane; `tollgate proxy snapshot show` shows what it would do now.

`tollgate proxy journal dump` prints the calls that its journals hold. Settings come from the environment, flags
override. This module parses and reports; the supervisor runs.

See docs/reference/settings.md.
"""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import click

from proxy.edges.journal.supervisor.journal_dump import NoJournalError, dumped_calls
from proxy.edges.policy.recorded_time import LatestTime, RecordedTime, recorded_time_path
from proxy.edges.policy.supervisor.policy_replica import ReplicaInUseError, ReplicaUnusableError
from proxy.edges.policy.supervisor.replica_listing import NoReplicaFileError, ReplicaListing, open_replica_listing
from proxy.edges.process.log_writer import log_off_the_loop
from proxy.edges.process.supervisor.worker_processes import PortInUseError
from proxy.errors import PolicyUnavailableError
from proxy.inspection import Tiered, endpoint_lines, key_lines, overview
from proxy.settings import Settings, journal_directory, replica_settings, settings_from
from proxy.supervisor.app import Bind, Supervisor
from runtime.environment import SettingsError
from runtime.log_lines import log_uncaught
from runtime.private_files import WrongOwnerError
from runtime.setting_names import warnings_of

log = logging.getLogger("proxy")
_PORT = click.IntRange(0, 65535)
_FLAGS = {
    "data": "TOLLGATE_DATA",
    "journal_dir": "TOLLGATE_JOURNAL_DIR",
    "replica_path": "TOLLGATE_REPLICA_PATH",
    "redis_url": "TOLLGATE_REDIS_URL",
    "control_url": "TOLLGATE_CONTROL_URL",
}
"""Flags that override a setting. Workers read them from the environment they are given."""


@click.group(invoke_without_command=True, context_settings={"show_default": True})
@click.option("--host", default="127.0.0.1", help="Address to listen on for inference calls.")
@click.option("--proxy-port", default=8080, type=_PORT, help="Where inference calls arrive.")
@click.option("--admin-port", default=8082, type=_PORT, help="/healthz, /readyz and /metrics.")
@click.option("--admin-host", default="127.0.0.1", help="Address of the admin port; --host does not change it.")
@click.option("--workers", default=1, type=click.IntRange(1, 256), help="Worker processes; one per core is usual.")
@click.option("--data", metavar="DIR", help="Where journal and replica are, unless they have flags of their own.")
@click.option("--journal-dir", metavar="DIR", help="Billing events on their way to control.")
@click.option("--replica-path", metavar="FILE", help="This machine's copy of policy.")
@click.option("--redis-url", metavar="URL", help="Where the counters are.")
@click.option("--control-url", metavar="URL", help="Where policy comes from and events go.")
@click.pass_context
def main(context: click.Context, /, **flags: Any) -> None:
    """The data plane: serves inference calls under policy. Settings: TOLLGATE_* (see docs/reference/settings.md)."""
    bind = Bind(**{name: flags.pop(name) for name in Bind.__dataclass_fields__})
    environ = _environ_with(flags)
    if context.invoked_subcommand is not None:
        context.obj = environ
        return
    try:
        settings = settings_from(environ)
        log_uncaught()
        with log_off_the_loop(settings.log_level):
            asyncio.run(_supervise(settings, bind, environ))
    except (SettingsError, PortInUseError, ReplicaInUseError, ReplicaUnusableError, WrongOwnerError) as error:
        raise click.ClickException(str(error)) from None


def _environ_with(flags: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment with the flags applied. `--data` also overrides the paths derived from it."""
    overrides = {_FLAGS[name]: value for name, value in flags.items() if value is not None}
    environ = dict(os.environ)
    if "TOLLGATE_DATA" in overrides:
        environ.pop("TOLLGATE_JOURNAL_DIR", None)
        environ.pop("TOLLGATE_REPLICA_PATH", None)
    return environ | overrides


@main.group("settings", hidden=True)
def settings_commands() -> None:
    """The settings that a proxy would start with. `tollgate doctor` asks."""


@settings_commands.command("check")
@click.pass_obj
def settings_check(environ: dict[str, str]) -> None:
    """Exit status 1, with the sentence that would end a start, if a setting is wrong."""
    try:
        settings_from(environ)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None


@main.group()
def snapshot() -> None:
    """Show this machine's replica of policy."""


@snapshot.command("show")
@click.option("--slug", help="Show the target of this slug.")
@click.option("--key-prefix", help="What the key with this prefix may call, and which limits bind.")
@click.pass_obj
def snapshot_show(environ: dict[str, str], slug: str | None, key_prefix: str | None) -> None:
    """Show what a proxy on this machine would do now, and which limits bind."""
    try:
        settings = replica_settings(environ)
        recorded = RecordedTime(recorded_time_path(journal_directory(environ)))
        now_ms = LatestTime(recorded.cell).now_ms()
        recorded.close()
        with open_replica_listing(settings.path, settings.secret_keys) as listing:
            tiered = Tiered(listing.directory, settings.tiers)
            for line in _shown(listing, tiered, slug, key_prefix, now_ms):
                click.echo(line)
    except (SettingsError, NoReplicaFileError, PolicyUnavailableError) as error:
        raise click.ClickException(str(error)) from None


@main.group()
def journal() -> None:
    """Show this machine's journals of calls."""


@journal.command("dump")
@click.option("--journal-dir", metavar="DIR", help="The directory of the journals.")
@click.pass_obj
def journal_dump(environ: dict[str, str], journal_dir: str | None) -> None:
    """Print the calls that the journals still hold, one JSON object a line, without metadata.

    Changes nothing, and may run beside the proxy. A call that moves meanwhile may be printed twice.
    """
    directory = journal_directory(environ if journal_dir is None else {"TOLLGATE_JOURNAL_DIR": journal_dir})
    try:
        for line in dumped_calls(directory):
            click.echo(line)
    except (NoJournalError, OSError) as error:
        raise click.ClickException(str(error)) from None


def _shown(
    listing: ReplicaListing, tiered: Tiered, slug: str | None, key_prefix: str | None, now_ms: int
) -> Iterator[str]:
    yield from overview(listing.version.epoch, listing.version.revision, listing.rows())
    ago_s = listing.confirmed_ago_s()
    yield "not being refreshed now" if ago_s is None else f"confirmed by control {ago_s:.0f} s ago"
    if key_prefix is not None:
        prefix = key_prefix.partition(".")[0]  # never echo a whole key
        key = listing.key_with(prefix)
        if key is None:
            yield f"key {prefix}: not known here; calls are answered 403 once control has confirmed that"
        else:
            yield from key_lines(tiered, key, slug, now_ms)
    if slug is not None:
        yield from endpoint_lines(tiered, slug)


async def _supervise(settings: Settings, bind: Bind, environ: dict[str, str]) -> None:
    for warning in warnings_of(environ):
        log.warning("%s", warning)
    await Supervisor(settings, bind, environ).run()
