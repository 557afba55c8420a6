"""The checks of `tollgate doctor`, in the order in which they are shown."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from control.edges.inspection.database_look import DatabaseLook, has_file, look_at_database
from control.edges.inspection.disk_look import look_at_disk
from control.edges.inspection.process_look import look_at_readyz, proxy_settings_trouble
from control.edges.inspection.redis_look import RedisLook, look_at_redis
from control.edges.inspection.upstream_look import Origin, UpstreamLooks
from control.edges.process.redis_binary import RedisServerError, choose
from control.edges.sql.database_url import DatabaseUrlError
from control.operator.doctor.findings import Finding, fault, ok, warning
from control.operator.doctor.installation import Installation
from control.operator.doctor.machine_rules import (
    certificate_findings,
    disk_findings,
    memory_findings,
    ready_findings,
    upstream_findings,
)
from control.operator.doctor.server_rules import OWN_REDIS, database_findings, queue_findings, redis_findings
from policy.endpoints import PROVIDERS, Target
from policy.hosts import EgressRules, Reach, platform_hosts
from runtime.environment import Environment, SettingsError, http_url
from runtime.tls.context import CERT_FILE, KEY_FILE
from runtime.tls.files import certificate_files
from runtime.tls.pinned import peer_tls, pinned

_DAY_S = 86_400.0
JOURNAL_MEMORY_DIR = "/dev/shm"  # noqa: S108 (the proxy's default, at which nothing is left)


async def examine(installation: Installation) -> list[Finding]:
    """Run all checks. None raises for something that is wrong with the installation."""
    if unreadable := list(installation.unreadable_directory()):
        return unreadable
    installation = installation.as_started()
    findings = list(installation.directory_findings())
    environment = installation.environment()
    findings += installation.settings_findings(await proxy_settings_trouble(environment))
    findings += _certificate(environment)
    redis, (database, of_database) = await asyncio.gather(_redis(installation), _database(installation))
    findings += [*redis, *of_database, *_disks(environment)]
    findings += await _upstreams(database, environment)
    findings += await process_findings(installation)
    return findings


def _certificate(environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        files = certificate_files(Environment(environment), CERT_FILE, KEY_FILE)
    except SettingsError:  # the settings' finding says so
        return
    if files is not None:
        yield from certificate_findings((files.pair.ends_at_s - time.time()) / _DAY_S, files.valid_until)


async def _redis(installation: Installation) -> list[Finding]:
    environment = installation.environ
    socket = installation.own_redis_socket
    findings = list[Finding]()
    looks = list[RedisLook]()
    if unknown := [*installation.not_checked("redis", "TOLLGATE_REDIS_URL")]:
        findings += unknown
    elif socket is None:
        looks = await look_at_redis(installation.redis_url or "")
        findings += redis_findings(looks, "redis", "TOLLGATE_REDIS_URL")
    elif socket.exists() and installation.running() is not None:
        findings += redis_findings(await look_at_redis(f"unix://{socket}"), "redis", OWN_REDIS)
    else:
        try:
            findings.append(ok("redis", f"`tollgate up` will run {choose(installation.directory.path, environment)}"))
        except RedisServerError as error:
            findings.append(fault("redis", str(error), "Then run this again"))
    setting = "TOLLGATE_REDIS_URL"
    findings += installation.not_checked("async", "TOLLGATE_ASYNC_REDIS_URL")
    if url := environment.get("TOLLGATE_ASYNC_REDIS_URL"):
        setting = "TOLLGATE_ASYNC_REDIS_URL"
        looks = await look_at_redis(url)
        findings += redis_findings(looks, "async", setting)
    if environment.get("TOLLGATE_ASYNC") != "off" and "TOLLGATE_ASYNC_REDIS_URL" not in installation.unknown:
        findings += queue_findings(looks, setting)
    return findings


async def _database(installation: Installation) -> tuple[DatabaseLook, list[Finding]]:
    if unknown := [*installation.not_checked("database", "TOLLGATE_DATABASE_URL")]:
        return DatabaseLook(""), unknown
    url = installation.environment()["TOLLGATE_DATABASE_URL"]
    try:
        can_be_there, file = has_file(url)
        if not can_be_there:
            return DatabaseLook(""), [ok("database", f"{file} does not exist yet; the first start makes it")]
        look = await look_at_database(url, installation.secret_keys())
    except DatabaseUrlError as error:
        return DatabaseLook(""), [fault("database", str(error), "Mend TOLLGATE_DATABASE_URL")]
    return look, list(database_findings(look))


def _disks(environment: Mapping[str, str]) -> Iterator[Finding]:
    places = {
        "journal": Path(environment["TOLLGATE_JOURNAL_DIR"]),
        "replica of policy": Path(environment["TOLLGATE_REPLICA_PATH"]).parent,
    }
    for holds, path in places.items():
        yield from disk_findings(look_at_disk(path), holds)
    memory = environment.get("TOLLGATE_JOURNAL_MEMORY_DIR") or JOURNAL_MEMORY_DIR
    if memory != "off":
        yield from memory_findings(look_at_disk(Path(memory)), Path(memory))


async def _upstreams(database: DatabaseLook, environment: Mapping[str, str]) -> list[Finding]:
    users: defaultdict[Origin, list[str]] = defaultdict(list)
    for slug, target in database.targets:
        if (origin := _origin(target, environment)) is not None:
            users[origin].append(slug)
    for deployment, url in database.replicas:
        users[Origin.of(url, Reach.REPLICA)].append(deployment)
    if not users:
        return [ok("upstreams", "no slug or deployment leads anywhere yet")]
    hosts = platform_hosts(
        environment.get("TOLLGATE_PLATFORM_HOSTS", ""), environment.get("TOLLGATE_MODEL_API_BASE_URL")
    )
    try:
        rules = EgressRules.parse(environment.get("TOLLGATE_EGRESS_ALLOW", ""), hosts)
        looks = UpstreamLooks(rules, environment.get("TOLLGATE_EGRESS_CA_FILE") or None)
    except ValueError as error:
        return [warning("upstreams", f"not checked: {error}", "Mend TOLLGATE_EGRESS_ALLOW")]
    except OSError as error:
        return [fault("upstreams", f"TOLLGATE_EGRESS_CA_FILE cannot be read ({error.strerror})", "Name a PEM file")]
    return list(upstream_findings(await looks.look_at(users), users))


def _origin(target: Target, environment: Mapping[str, str]) -> Origin | None:
    """The server that a target is asked at; None for a platform model, which has replicas."""
    if target.base_url:
        return Origin.of(target.base_url, Reach.CUSTOMER)
    provider = PROVIDERS.get(target.provider)
    base_url = None if provider is None else provider.base_url
    if base_url is None:
        return None
    url = environment.get(base_url.setting) or base_url.default
    if url is None:
        return None
    if target.vendor_c_config is not None:
        location = target.vendor_c_config.location
        url = url.replace("{location}-", "" if location == "global" else f"{location}-").replace("{location}", location)
    return Origin.of(url, Reach.OPERATOR)


async def process_findings(installation: Installation) -> list[Finding]:
    """The parts of the `up` of the data directory, or the control that the settings name."""
    record = installation.running()
    url = installation.environ.get("TOLLGATE_CONTROL_URL")
    if record is not None:
        tls = pinned(record.cert_file)
        control, proxy = await asyncio.gather(look_at_readyz(record.control, tls), look_at_readyz(record.admin))
        control_findings = ready_findings(control, "control", record.control)
        return [*control_findings, *ready_findings(proxy, "proxy", record.admin)]
    if url:
        try:
            control_url = http_url(url)
            tls = peer_tls(Environment(installation.environ), "TOLLGATE_CONTROL_CERT_FILE")
        except ValueError:  # the settings' finding says so; the URL may hold a password
            return []
        return list(ready_findings(await look_at_readyz(control_url, tls), "control", control_url))
    if not installation.database_url:
        text = f"no `tollgate up` serves {installation.directory.path}, or it is not ready yet"
        return [warning("running", text, "Start it, or name its directory with --data")]
    return []
