"""Findings about a Redis or a database, by what was seen of it. No I/O."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from control.edges.inspection.database_look import DatabaseLook
from control.edges.inspection.redis_look import RedisLook
from control.operator.doctor.findings import Finding, Level, fault, ok, warning

OWN_REDIS = "--data"
"""The name of the Redis that `tollgate up` runs, in the place of a setting."""
_OLDEST = (6, 2)
_NEWEST_TESTED = 8
_FULL = 0.9
_SKEW_WARNING_S = 1.0
_SKEW_FAULT_S = 30.0
_BEHIND_S = 60.0
_EVICTION_REMEDY = "Set maxmemory-policy noeviction: any other deletes counters, and with them limits"


def redis_findings(looks: Sequence[RedisLook], check: str, setting: str) -> Iterator[Finding]:
    """`looks`: at the only server, or at each primary; then only what is wrong is told of each.

    `setting`: the one that names this Redis.
    """
    nodes = [look for look in looks if look.node]
    for look in looks:
        for finding in _findings_of_one(look, check, setting):
            if not look.node:
                yield finding
            elif finding.level is not Level.OK:
                yield replace(finding, text=f"{look.node}: {finding.text}")
    if nodes and not any(look.trouble for look in looks):
        yield ok(check, f"{len(nodes)} in use: {', '.join(look.node for look in nodes)}")


def queue_findings(looks: Sequence[RedisLook], setting: str) -> Iterator[Finding]:
    """Findings on what the queue of asynchronous requests needs besides. `setting`: the one that names its Redis."""
    for look in looks:
        if look.trouble or (look.info and look.may_wait):
            continue
        where = f"{look.node}: " if look.node else ""
        text = f"{where}its user may not run {'WAIT' if look.info else 'INFO'}: asynchronous requests are refused"
        yield fault("async", text, f"ACL SETUSER … +info +wait for the user in {setting}")


def _findings_of_one(look: RedisLook, check: str, setting: str) -> Iterator[Finding]:
    if look.trouble:
        remedy = f"Start Redis, or mend {setting}, the network, or the password"
        if setting == OWN_REDIS:
            remedy = "`tollgate up` restarts it when it has died; redis.log in the data directory says why"
        yield fault(check, f"unusable: {look.trouble}", f"{remedy}. Calls with limits are 503 without it")
        return
    if not look.info:
        text = "its user may not run INFO: version, persistence and memory are not checked"
        yield warning(check, text, f"ACL SETUSER … +info for the user in {setting}, or check them by hand")
    else:
        yield _version(look, check)
        yield from _persistence(look, check)
        yield from _redis_replicas(look, check)
        yield from _memory(look, check)
    yield from clock_findings(look.ahead_s, "Redis")


def _version(look: RedisLook, check: str) -> Finding:
    name = "Valkey" if "valkey_version" in look.info else "Redis"
    text = str(look.info.get("valkey_version") or look.info.get("redis_version", ""))
    compatible = tuple(map(int, re.findall(r"\d+", str(look.info.get("redis_version", "")))[:2])) or (0, 0)
    if compatible < _OLDEST:
        return fault(check, f"{name} {text} is too old", "Install Redis 6.2 or later, or Valkey")
    if compatible[0] > _NEWEST_TESTED:
        return warning(check, f"{name} {text} is newer than what was tested (8)", "Watch it, or use version 8")
    return ok(check, f"{name} {text}")


def _persistence(look: RedisLook, check: str) -> Iterator[Finding]:
    if look.info.get("role") == "slave":
        yield fault(check, "it is a replica, which takes no writes", "Name the primary")
    if int(look.info.get("loading", 0)):
        yield warning(check, "it is loading its file", "Wait: calls with limits are refused until it is done")
    if not int(look.info.get("aof_enabled", 0)):
        text = "it keeps no append-only file: a restart starts all windows empty, and loses asynchronous requests"
        yield warning(check, text, "Set appendonly yes, appendfsync everysec")
    elif look.info.get("aof_last_write_status", "ok") != "ok":
        yield fault(check, "it could not write its append-only file", "Make room on its disk; see its log")


def _redis_replicas(look: RedisLook, check: str) -> Iterator[Finding]:
    if look.node and not int(look.info.get("connected_slaves", 0)):
        yield warning(check, "it has no replica: nothing replaces it when it dies", "Give it a replica on another host")


def _memory(look: RedisLook, check: str) -> Iterator[Finding]:
    policy = str(look.info.get("maxmemory_policy", "noeviction"))
    most = int(look.info.get("maxmemory", 0))
    if policy != "noeviction":
        level = fault if most else warning
        yield level(check, f"its eviction policy is {policy}", _EVICTION_REMEDY)
    used_bytes = int(look.info.get("used_memory", 0))
    if most and used_bytes > _FULL * most:
        remedy = "Raise maxmemory: at the bound calls with limits are refused"
        yield fault(check, f"{used_bytes / most:.0%} of its maxmemory are used", remedy)


def clock_findings(ahead_s: float, whose: str) -> Iterator[Finding]:
    """Compare a server's clock with this machine's."""
    if abs(ahead_s) < _SKEW_WARNING_S:
        yield ok("clock", f"{whose} and this machine agree ({ahead_s * 1000:+.0f} ms)")
        return
    level = fault if abs(ahead_s) > _SKEW_FAULT_S else warning
    word = "ahead of" if ahead_s > 0 else "behind"
    remedy = "Run a time service (chrony, systemd-timesyncd) on both machines"
    yield level("clock", f"the clock of {whose} is {abs(ahead_s):.1f} s {word} this machine's", remedy)


def database_findings(look: DatabaseLook) -> Iterator[Finding]:
    check = "database"
    if look.trouble:
        yield fault(check, f"unusable: {look.trouble}", f"{_remedy(look)}. Calls go on without it")
        return
    if look.schema != look.latest_schema:
        yield _schema(look)
        return
    yield ok(check, f"{look.kind}, schema {look.schema}, {look.size_bytes / 1e6:.1f} MB")
    if look.kind == "postgresql":
        yield from clock_findings(look.ahead_s, "the database")
    if look.behind_s > _BEHIND_S:
        text = f"the database's clock is {look.behind_s:.0f} s behind its own latest: new events are listed late"
        yield fault("clock", text, "Correct the clock; see docs/runbooks/event-clock-behind.md")
    if look.unreadable_secrets:
        text = f"{look.unreadable_secrets} of the newest secrets cannot be opened"
        yield fault("secrets", text, "Put the key that sealed them into TOLLGATE_SECRET_KEY, behind the first one")


def _remedy(look: DatabaseLook) -> str:
    if look.kind == "sqlite":
        return "Run this as its owner, mend the disk, or restore a backup (docs/operating.md#backup-and-restore)"
    return "Start it, or mend TOLLGATE_DATABASE_URL, the network, or the password"


def _schema(look: DatabaseLook) -> Finding:
    if look.schema is None:
        return ok("database", f"{look.kind}, empty; the next start of control makes the tables")
    if look.schema > look.latest_schema:
        remedy = "Run that version, or restore a backup from before the upgrade"
        return fault("database", f"schema {look.schema} is of a newer Tollgate ({look.latest_schema})", remedy)
    text = f"schema {look.schema} is older than this version's ({look.latest_schema})"
    return warning("database", text, "Back it up. The next start of control migrates it")
