"""Checks the findings that the doctor draws from what it saw."""

import json
from pathlib import Path
from typing import Any

import pytest

from control.edges.inspection.database_look import DatabaseLook
from control.edges.inspection.disk_look import DiskLook
from control.edges.inspection.process_look import ReadyLook
from control.edges.inspection.redis_look import RedisLook
from control.edges.inspection.upstream_look import Origin, UpstreamLook
from control.operator.doctor.examination import JOURNAL_MEMORY_DIR
from control.operator.doctor.findings import Finding, Level, as_json, as_lines, fault, is_healthy, ok, warning
from control.operator.doctor.machine_rules import disk_findings, memory_findings, ready_findings, upstream_findings
from control.operator.doctor.server_rules import OWN_REDIS, database_findings, queue_findings, redis_findings
from policy.hosts import Reach
from proxy.settings import settings_from

GOOD_REDIS: dict[str, Any] = {
    "redis_version": "7.0.15",
    "role": "master",
    "loading": 0,
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "maxmemory": 1000,
    "maxmemory_policy": "noeviction",
    "used_memory": 100,
}
GOOD_DATABASE = DatabaseLook("", "postgresql", "0008", "0008", size_bytes=1_000_000)


def worst(findings: list[Finding]) -> Level:
    levels = [finding.level for finding in findings]
    return max(levels, key=[Level.OK, Level.WARNING, Level.FAULT].index)


def redis_level(changes: dict[str, Any], ahead_s: float = 0.0) -> Level:
    return worst(list(redis_findings([RedisLook("", GOOD_REDIS | changes, ahead_s)], "redis", "TOLLGATE_REDIS_URL")))


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, Level.OK),
        ({"redis_version": "6.0.16"}, Level.FAULT),
        ({"redis_version": "6.2.0"}, Level.OK),
        ({"redis_version": "9.1.0"}, Level.WARNING),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.0"}, Level.OK),
        ({"redis_version": "rubbish"}, Level.FAULT),
        ({"aof_enabled": 0}, Level.WARNING),
        ({"aof_last_write_status": "err"}, Level.FAULT),
        ({"role": "slave"}, Level.FAULT),
        ({"loading": 1}, Level.WARNING),
        ({"maxmemory_policy": "allkeys-lru"}, Level.FAULT),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 0}, Level.WARNING),
        ({"used_memory": 950}, Level.FAULT),
        ({"used_memory": 950, "maxmemory": 0}, Level.OK),
    ],
)
def test_redis_is_judged_by_what_it_says_of_itself(changes: dict[str, Any], level: Level) -> None:
    assert redis_level(changes) is level


@pytest.mark.parametrize(
    ("ahead_s", "level"),
    [(0.9, Level.OK), (-0.9, Level.OK), (2.0, Level.WARNING), (-2.0, Level.WARNING), (-31.0, Level.FAULT)],
)
def test_clock_of_redis_is_compared_with_ours(ahead_s: float, level: Level) -> None:
    assert redis_level({}, ahead_s) is level


def test_queue_whose_redis_refuses_info_or_wait_is_a_fault() -> None:
    looks = [
        RedisLook("", {"role": "master"}, 0.0, "one"),
        RedisLook("", {}, 0.0, "two"),
        RedisLook("", {"role": "master"}, 0.0, "three", may_wait=False),
        RedisLook("away", {}, 0.0, "four"),
    ]
    findings = list(queue_findings(looks, "TOLLGATE_ASYNC_REDIS_URL"))
    assert [(one.level, one.text.partition(":")[0], "WAIT" in one.text) for one in findings] == [
        (Level.FAULT, "two", False),
        (Level.FAULT, "three", True),
    ]
    assert all("+info +wait" in one.remedy and "TOLLGATE_ASYNC_REDIS_URL" in one.remedy for one in findings)


def test_redis_that_refuses_info_is_a_warning_and_one_that_is_away_a_fault() -> None:
    assert worst(list(redis_findings([RedisLook("", {})], "redis", "TOLLGATE_REDIS_URL"))) is Level.WARNING
    (away,) = redis_findings([RedisLook("WRONGPASS", {})], "redis", "TOLLGATE_REDIS_URL")
    assert (away.level, away.text) == (Level.FAULT, "unusable: WRONGPASS")
    assert "TOLLGATE_REDIS_URL" in away.remedy


@pytest.mark.parametrize(
    ("look", "level"),
    [
        (GOOD_DATABASE, Level.OK),
        (DatabaseLook("refused"), Level.FAULT),
        (DatabaseLook("", "sqlite", None), Level.OK),
        (DatabaseLook("", "sqlite", "0001", "0008"), Level.WARNING),
        (DatabaseLook("", "sqlite", "9999", "0008"), Level.FAULT),
        (DatabaseLook("", "sqlite", "0008", "0008", behind_s=61), Level.FAULT),
        (DatabaseLook("", "sqlite", "0008", "0008", behind_s=59), Level.OK),
        (DatabaseLook("", "sqlite", "0008", "0008", unreadable_secrets=1), Level.FAULT),
        (DatabaseLook("", "postgresql", "0008", "0008", ahead_s=5), Level.WARNING),
    ],
)
def test_database_is_judged(look: DatabaseLook, level: Level) -> None:
    assert worst(list(database_findings(look))) is level


@pytest.mark.parametrize(
    ("look", "level"),
    [
        (DiskLook(Path("/j"), "", 10 << 30, None), Level.OK),
        (DiskLook(Path("/j"), "Read-only file system"), Level.FAULT),
        (DiskLook(Path("/j"), "", 1 << 30, None), Level.WARNING),
        (DiskLook(Path("/j"), "", 100 << 20, None), Level.FAULT),
        (DiskLook(Path("/j"), "", 10 << 30, 10), Level.FAULT),
    ],
)
def test_disk_is_judged(look: DiskLook, level: Level) -> None:
    assert worst(list(disk_findings(look, "journal"))) is level


@pytest.mark.parametrize(
    ("look", "text"),
    [
        (DiskLook(Path("/m"), "", 100 << 20, None), ""),
        (DiskLook(Path("/m"), "", 20 << 20, None), "20 MiB free"),
        (DiskLook(Path("/m"), "Permission denied"), "Permission denied"),
        (DiskLook(Path("/"), "", 100 << 20, None), "no such directory"),
    ],
)
def test_memory_of_journals_is_a_warning_where_workers_would_wait_for_the_disk(look: DiskLook, text: str) -> None:
    (finding,) = memory_findings(look, Path("/m"))
    assert finding.level is (Level.WARNING if text else Level.OK)
    assert text in finding.text
    assert ("TOLLGATE_JOURNAL_MEMORY_DIR" in finding.remedy) == bool(text)


def test_remedy_is_that_of_the_trouble() -> None:
    origin = Origin.of("https://vendor.example", Reach.OPERATOR)

    def of_certificate(reason: str) -> str:
        look = UpstreamLook(f"its certificate is refused: {reason}")
        return next(upstream_findings({origin: look}, {origin: ["acme/a"]})).remedy

    assert "Make room" in next(disk_findings(DiskLook(Path("/j"), "No space left on device"), "journal")).remedy
    assert "restore a backup" in next(database_findings(DatabaseLook("file is not a database", "sqlite"))).remedy
    for setting, remedy in ((OWN_REDIS, "redis.log"), ("TOLLGATE_REDIS_URL", "mend TOLLGATE_REDIS_URL")):
        assert remedy in next(redis_findings([RedisLook("no answer", {})], "redis", setting)).remedy
    assert "the password" in next(database_findings(DatabaseLook("refused", "postgresql"))).remedy
    assert "clock" in of_certificate("certificate has expired")
    assert "DNS" in of_certificate("Hostname mismatch, certificate is not valid for 'vendor.example'.")
    assert "TOLLGATE_EGRESS_CA_FILE" in of_certificate("unable to get local issuer certificate")


def test_vendor_that_is_away_is_a_fault_and_a_customers_server_a_warning() -> None:
    vendor, customer = (
        Origin.of(f"https://{name}.example/secret-path", reach)
        for name, reach in (("vendor", Reach.OPERATOR), ("own", Reach.CUSTOMER))
    )
    looks = {vendor: UpstreamLook("Connection refused"), customer: UpstreamLook("no answer in time")}
    findings = list(upstream_findings(looks, {vendor: ["acme/a"], customer: ["b/1", "b/2", "b/3", "b/4"]}))
    assert [finding.level for finding in findings] == [Level.FAULT, Level.WARNING]
    assert findings[1].text == "https://own.example:443 (b/1, b/2, b/3 and more): no answer in time"
    assert "secret-path" not in as_json(findings)


def test_certificate_that_ends_soon_is_a_warning() -> None:
    origin = Origin.of("https://vendor.example", Reach.OPERATOR)
    for days, level in ((13.0, Level.WARNING), (15.0, Level.OK)):
        assert worst(list(upstream_findings({origin: UpstreamLook("", days)}, {origin: ["acme/a"]}))) is level


def test_readyz_is_told_as_it_is() -> None:
    look = ReadyLook("", faults=("redis: away",), degraded=("hints: none",))
    assert [finding.text for finding in ready_findings(look, "proxy", "http://p")] == [
        "not ready: redis: away",
        "degraded: hints: none",
    ]
    assert worst(list(ready_findings(ReadyLook("no answer in time"), "proxy", "http://p"))) is Level.FAULT


def test_findings_are_shown_for_people_and_for_scripts() -> None:
    findings = [ok("a", "well"), warning("b", "hm", "mend it"), fault("c", "no", "mend that")]
    assert not is_healthy(findings)
    assert is_healthy(findings[:2])
    assert list(as_lines(findings))[-1] == "1 fault, 1 warning"
    assert any("→ mend that" in line for line in as_lines(findings))
    report = json.loads(as_json(findings))
    assert report["healthy"] is False
    assert report["findings"][1] == {"check": "b", "level": "warning", "text": "hm", "remedy": "mend it"}


def test_default_of_the_journal_in_memory_is_the_one_of_the_proxy() -> None:
    required = {
        "TOLLGATE_REDIS_URL": "redis://127.0.0.1",
        "TOLLGATE_INTERNAL_TOKEN": "sixteen characters",
        "TOLLGATE_SECRET_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
    }
    assert str(settings_from(required).journal_memory_dir) == JOURNAL_MEMORY_DIR
