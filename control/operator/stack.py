"""`tollgate up`: runs the whole product on one machine, as child processes with one data directory.

Starts Redis, then control, trainer and proxy at the same time. Stops them in reverse; the proxy drains first. A child
that dies before `ready` ends `up`; one that dies later is restarted. Serves no request itself.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from control.edges.process import started_settings, up_record
from control.edges.process.data_directory import DataDirectory
from control.edges.process.embedded_redis import EmbeddedRedis
from control.edges.process.http_probe import answers_ok
from control.edges.process.redis_binary import choose, set_stray_file_aside
from control.edges.process.up_record import UpRecord
from control.operator.example_part import HOST as EXAMPLE_HOST
from control.operator.example_part import NOTICE, example_part, example_settings
from control.operator.stack_parts import (
    PYTHON_MODULE,
    TERMINAL_SIGNALS,
    PartRunner,
    Say,
    StackError,
    StackPart,
    terminate,
)
from control.operator.trainer_part import trainer_parts, training_settings
from control.stopping import done_unless
from runtime.child_process import Launch, accepts, can_bind, free_ports
from runtime.environment import Environment
from runtime.exhaustion import raise_descriptor_limit
from runtime.secret_keys import has_secret_keys
from runtime.setting_names import is_unknown, warnings_of
from runtime.tls.context import CERT_FILE, KEY_FILE
from runtime.tls.files import certificate_files

PORT_PATIENCE_S = 1.0
"""The wait for a port: processes of an `up` that was just killed may hold it a moment longer."""
_POLL_S = 0.05
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class PortTakenError(StackError):
    """A port that the product needs is in use."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the three servers; 0 picks a free one."""

    proxy: int
    control: int
    admin: int


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `tollgate up`. `redis_url` None: embedded; `database_url` None: SQLite in `data`."""

    data: Path
    host: str
    admin_host: str
    ports: Ports
    workers: int
    redis_url: str | None
    database_url: str | None
    environment: Mapping[str, str]
    drain_timeout_s: float
    example_port: int | None = None
    """The port of the example vendor; 0 picks a free one. None: there is none."""

    @property
    def cert_file(self) -> str | None:
        """The certificate that proxy and control show. The parts trust it; the admin port speaks plain HTTP."""
        name = Environment(self.environment).text(CERT_FILE, "")
        return str(Path(name).absolute()) if name else None

    @property
    def proxy_url(self) -> str:
        return _url(self.host, self.ports.proxy, is_tls=self.cert_file is not None)

    @property
    def control_url(self) -> str:
        return _url(self.host, self.ports.control, is_tls=self.cert_file is not None)

    @property
    def admin_url(self) -> str:
        return _url(self.admin_host, self.ports.admin, is_tls=False)

    def host_of(self, port_name: str) -> str:
        return self.admin_host if port_name == "admin" else self.host


def _url(host: str, port: int, *, is_tls: bool) -> str:
    """The URL by which this machine reaches one of our ports."""
    host = _reachable(host)
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _reachable(host: str) -> str:
    """The address to connect to, for an address to listen on."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (read, not bound)


async def up(options: Options, say: Say, announce: Say) -> None:
    """Run the product until SIGTERM, SIGINT or SIGHUP. `announce` gets the `ready` line, `say` the progress."""
    stop_requested = _stop_event(say, options.drain_timeout_s)
    if options.database_url:
        from control.edges.sql import database_url  # it imports SQLAlchemy; without a URL only control needs that

        database_url.parse(options.database_url)
    for warning in warnings_of(options.environment):
        say(warning)
    certificate_files(Environment(options.environment), CERT_FILE, KEY_FILE)  # else each part would complain
    raise_descriptor_limit()
    directory = DataDirectory(options.data)
    directory.make()
    lock = directory.lock()
    _remove_records(directory)
    options = replace(options, ports=await _choose_ports(options))
    if options.example_port is not None:
        options = _with_example(options)
        say(NOTICE)
    part_runners: list[PartRunner] = []
    try:
        parts = _stack_parts(options, directory, lock, say)
        if not await done_unless(stop_requested, _start(parts, part_runners, say)):
            return
        _write_record(directory, options, say)
        say(f"console: {options.control_url}/console")
        announce(_ready_line(options))
        await stop_requested.wait()
    finally:
        _remove_records(directory)
        for runner in part_runners:
            runner.stop_restarting()
        for runner in reversed(part_runners):
            await runner.stop()
        os.close(lock)
        say("all parts stopped")


async def _start(parts: Sequence[StackPart], part_runners: list[PartRunner], say: Say) -> None:
    """Start all parts and wait until they are ready. `part_runners` gets each as it begins."""
    runners: list[PartRunner] = []
    for part in parts:
        runner = PartRunner(part, say)
        part_runners.append(runner)
        await runner.begin()
        if part.is_needed_first:
            await runner.until_ready()
        else:
            runners.append(runner)
    for runner in runners:
        await runner.until_ready()


def _ready_line(options: Options) -> str:
    return f"ready proxy={options.proxy_url} control={options.control_url} admin={options.admin_url}"


def _write_record(directory: DataDirectory, options: Options, say: Say) -> None:
    """Tell commands on this machine where the product answers. The product serves without that too."""
    has_own_database = options.database_url is None
    try:
        up_record.write(
            directory,
            UpRecord(options.proxy_url, options.control_url, options.admin_url, has_own_database, options.cert_file),
        )
        started_settings.write(directory, _started_with(options))
    except OSError as error:
        say(
            f"up.json or settings.json cannot be written ({error}); until the next start commands need TOLLGATE_URL and"
            " TOLLGATE_API_KEY, and `tollgate doctor` judges the settings of its own shell"
        )


def _started_with(options: Options) -> dict[str, str]:
    """The settings of the environment and of the flags that are settings, too."""
    flags = {"TOLLGATE_DATABASE_URL": options.database_url or "", "TOLLGATE_REDIS_URL": options.redis_url or ""}
    return {**options.environment, **flags}


def _remove_records(directory: DataDirectory) -> None:
    up_record.remove(directory)
    started_settings.remove(directory)


def _stack_parts(options: Options, directory: DataDirectory, lock: int, say: Say) -> list[StackPart]:
    """The parts in start order; they stop in reverse."""
    environment = {name: value for name, value in options.environment.items() if not is_unknown(name)}
    redis = None if options.redis_url else _embedded_redis(directory, environment, say)
    ours = environment | _settings(options, directory, redis)
    parts = [] if redis is None else [_redis_part(redis, environment, lock)]
    if options.example_port is not None:
        parts.append(example_part(options.example_port, environment, lock))
    trainer = trainer_parts(directory.path, ours, lock)
    return [*parts, _control_part(options, ours, lock), *trainer, _proxy_part(options, ours, lock)]


def _settings(options: Options, directory: DataDirectory, redis: EmbeddedRedis | None) -> dict[str, str]:
    """The settings by which the parts find their files and each other."""
    environment = options.environment
    return {
        "TOLLGATE_DATABASE_URL": options.database_url or directory.database_url,
        "TOLLGATE_REDIS_URL": redis.url if redis else options.redis_url or "",
        "TOLLGATE_CONTROL_URL": options.control_url,
        "TOLLGATE_CONTROL_CERT_FILE": options.cert_file or "",
        **_proxy_place(options),
        "TOLLGATE_INTERNAL_TOKEN": environment.get("TOLLGATE_INTERNAL_TOKEN") or directory.internal_token(),
        "TOLLGATE_JOURNAL_DIR": environment.get("TOLLGATE_JOURNAL_DIR") or str(directory.journal),
        "TOLLGATE_REPLICA_PATH": environment.get("TOLLGATE_REPLICA_PATH") or str(directory.replica),
        "TOLLGATE_READY_GRACE_S": environment.get("TOLLGATE_READY_GRACE_S") or "0",  # no load balancer here
        **_secret_keys(directory, environment),
        **training_settings(directory.path, environment),
    }


def _proxy_place(options: Options) -> dict[str, str]:
    """The settings by which control reaches the proxy: by its certificate, unless the operator names another place."""
    if options.environment.get("TOLLGATE_PROXY_URL"):
        return {}
    return {"TOLLGATE_PROXY_URL": options.proxy_url, "TOLLGATE_PROXY_CERT_FILE": options.cert_file or ""}


def _with_example(options: Options) -> Options:
    """The same, with a port for the example vendor, and the settings that lead calls there."""
    port = options.example_port or free_ports(EXAMPLE_HOST, 1, excluded=asdict(options.ports).values())[0]
    settings = example_settings(port, options.environment)
    return replace(options, example_port=port, environment={**options.environment, **settings})


def _secret_keys(directory: DataDirectory, environment: Mapping[str, str]) -> dict[str, str]:
    """The file of the data directory, unless the environment has keys: then that holds."""
    if has_secret_keys(environment):
        return {}
    return {"TOLLGATE_SECRET_KEY_FILE": str(directory.make_secret_key())}


def _embedded_redis(directory: DataDirectory, environment: Mapping[str, str], say: Say) -> EmbeddedRedis:
    if (report := set_stray_file_aside(directory.path)) is not None:
        say(report)
    server = choose(directory.path, environment)
    say(f"counters: {server}")
    return EmbeddedRedis(directory, server)


def _redis_part(redis: EmbeddedRedis, environment: dict[str, str], lock: int) -> StackPart:
    return StackPart("redis", redis.launch(environment, lock), redis.is_ready, redis.stop, 10.0, is_needed_first=True)


def _control_part(options: Options, environment: dict[str, str], lock: int) -> StackPart:
    port = options.ports.control
    argv = [*PYTHON_MODULE, "control", "--host", options.host, "--control-port", str(port)]
    ready_url = options.control_url + "/readyz"
    cert_file = options.cert_file

    async def is_ready() -> bool:
        return await answers_ok(ready_url, cert_file)

    return StackPart(
        "control",
        Launch(argv, environment, (lock,), TERMINAL_SIGNALS),
        is_ready,
        terminate,
        15.0,
    )


def _proxy_part(options: Options, environment: dict[str, str], lock: int) -> StackPart:
    ports = options.ports
    flags = {
        "host": options.host,
        "proxy-port": ports.proxy,
        "admin-host": options.admin_host,
        "admin-port": ports.admin,
        "workers": options.workers,
    }
    argv = [
        *PYTHON_MODULE,
        "proxy",
        *(word for flag, value in flags.items() for word in (f"--{flag}", str(value))),
    ]
    ready_url = options.admin_url + "/readyz"

    async def is_ready() -> bool:
        return await answers_ok(ready_url) and await accepts(_reachable(options.host), ports.proxy)

    return StackPart(
        "proxy",
        Launch(argv, environment, (lock,), TERMINAL_SIGNALS),
        is_ready,
        terminate,
        options.drain_timeout_s + 5.0,
    )


async def _choose_ports(options: Options) -> Ports:
    """The requested ports, with free ones for zeros. Raises PortTakenError if one is in use."""
    requested = {name: port for name, port in asdict(options.ports).items() if port}
    for port, times in Counter(requested.values()).items():
        if times > 1:
            raise StackError(f"port {port} is given twice; proxy, control and admin need one each")
    give_up_at = asyncio.get_running_loop().time() + PORT_PATIENCE_S
    for name, port in requested.items():
        host = options.host_of(name)
        while not can_bind(host, port):
            if asyncio.get_running_loop().time() >= give_up_at:
                raise PortTakenError(f"port {port} on {host} is in use; choose another with --{name}-port")
            await asyncio.sleep(_POLL_S)
    ports = asdict(options.ports)
    for name, port in ports.items():
        if not port:
            ports[name] = free_ports(options.host_of(name), 1, excluded=ports.values())[0]
    return Ports(**ports)


def _stop_event(say: Say, drain_timeout_s: float) -> asyncio.Event:
    event = asyncio.Event()

    def request_stop(name: str) -> None:
        if not event.is_set():
            say(f"{name}: draining (at most {drain_timeout_s:.0f} s), then stopping")
        event.set()

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, request_stop, number.name)
    return event
