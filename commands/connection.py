"""The way of a command to the management API: the options `--url`, `--data`, `--workspace`, and the key.

The key comes from TOLLGATE_API_KEY, because others can read a command line. Without one, both come from the context in
use; without that, `LocalAccess` finds them by the data directory of this machine's `tollgate up`.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
from click.core import ParameterSource

from commands.edges.context_file import path_of_contexts, read_contexts
from commands.errors import ManagementError, NoAccessError
from runtime.environment import http_url
from runtime.tls.pinned import pinned

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8081"
DEFAULT_DATA = Path(".tollgate")


class Client(Protocol):
    """The management API, as commands call it. AwayError or RefusedError if it does not answer 200."""

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Access:
    """The management API's address, and a key of management scope; the addresses of the proxy's two ports, if known."""

    url: str
    api_key: str = field(repr=False)
    proxy_url: str | None = None
    admin_url: str | None = None
    cert_file: str | None = None
    """The file of the very certificate to accept; None: certificates are checked by names and authorities."""


class LocalAccess(Protocol):
    """Finds a running `tollgate up` by its data directory. `tollgate` puts one into `click.Context.obj`."""

    def __call__(self, data: Path, workspace: str | None) -> Access:
        """Access to the named workspace, or to the only one. Raises NoAccessError."""
        ...

    def admin_url(self, data: Path) -> str:
        """The proxy's admin port, which needs no key here. Raises NoAccessError."""
        ...


@dataclass(frozen=True, slots=True)
class Connection:
    """The management API that a command works on, and whether to print JSON."""

    access: Access
    as_json: bool

    def at_proxy(self, url: str | None) -> "Connection":
        """The same key at the proxy: its URL as the flag says, or as the `up` on this machine does."""
        if url is None and self.access.proxy_url is None:
            raise click.UsageError("--proxy-url is needed: where calls go")
        try:
            address = http_url(url or self.access.proxy_url or "")
            is_known = address == self.access.proxy_url
            cert_file = self.access.cert_file if is_known else os.environ.get("TOLLGATE_PROXY_CERT_FILE")
            return replace(self, access=replace(self.access, url=address, cert_file=cert_file))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--proxy-url") from None

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run `work` with a client. A refusal or an unreachable API ends the command: one message, exit status 1."""
        from commands.edges.management_client import ManagementClient  # aiohttp takes 0.2 s to import

        try:
            tls = pinned(self.access.cert_file)
        except (OSError, ValueError):
            raise click.ClickException(f"{self.access.cert_file} cannot be read as a certificate in PEM") from None

        results: list[T] = []

        async def connected() -> None:
            client = ManagementClient(self.access.url, self.access.api_key, tls=tls)
            try:
                results.append(await work(client))
            finally:
                await client.close()

        try:
            asyncio.run(connected())  # not the result: Python 3.11 makes a text of a task's, for nobody, at its end
        except ManagementError as error:
            raise click.ClickException(str(error)) from None
        return results[0]


data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="TOLLGATE_DATA",
    default=DEFAULT_DATA,
    show_default=True,
    help="On the machine of `tollgate up`, without a key: its data directory.",
)


def over_api(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command `--url`, `--data`, `--workspace` and `--json`, and pass it a `Connection` as `connection`."""

    @wraps(command)
    def connected(url: str | None, data: Path, workspace: str | None, as_json: bool, **arguments: Any) -> T:
        access = _access(click.get_current_context(), url, data, workspace)
        return command(connection=Connection(access, as_json), **arguments)

    for option in reversed(_OPTIONS):
        connected = option(connected)
    return connected


_OPTIONS = (
    click.option("--url", envvar="TOLLGATE_URL", help=f"The management API; by default {DEFAULT_URL}."),
    data_option,
    click.option(
        "--workspace", envvar="TOLLGATE_WORKSPACE", help="Without a key: the workspace, if there is more than one."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the API's answer."),
)


def connection_of(context: click.Context) -> Connection:
    """The connection of a command that is not run but completed. Raises click.ClickException."""
    url, data, workspace = (context.params.get(name) for name in ("url", "data", "workspace"))
    return Connection(_access(context, url, data or DEFAULT_DATA, workspace), as_json=False)


def _access(context: click.Context, url: str | None, data: Path, workspace: str | None) -> Access:
    api_key = os.environ.get("TOLLGATE_API_KEY", "").strip()
    try:
        if api_key:
            _check_workspace("TOLLGATE_API_KEY is set", "unset it", workspace)
            return Access(http_url(url or DEFAULT_URL), api_key, cert_file=_cert_file())
        if url is None and not _names_directory(context) and (in_use := _context_in_use()) is not None:
            _check_workspace(f"the context {in_use.url} is in use", "use --data, or another context", workspace)
            return in_use
        local: LocalAccess = context.obj
        access = local(data, workspace)
        if url and http_url(url) != access.url:  # the directory's own key is not for another control
            raise NoAccessError(
                f"TOLLGATE_API_KEY is not set, and {url} is not served from {data}: it has {access.url}"
            )
        return access
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    except NoAccessError as error:
        raise click.ClickException(str(error)) from None


def _check_workspace(cause: str, remedy: str, workspace: str | None) -> None:
    if workspace is not None:
        raise NoAccessError(
            f"{cause}, and a key is of one workspace: {remedy}, or leave out --workspace (TOLLGATE_WORKSPACE)"
        )


def _names_directory(context: click.Context) -> bool:
    """Return whether the data directory of a `tollgate up` was named: it goes before a context."""
    return context.get_parameter_source("data") not in (ParameterSource.DEFAULT, None)


def _context_in_use() -> Access | None:
    context = read_contexts(path_of_contexts()).present
    return None if context is None else Access(context.url, context.api_key, cert_file=_cert_file())


def _cert_file() -> str | None:
    return os.environ.get("TOLLGATE_CONTROL_CERT_FILE")
