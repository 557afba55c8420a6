"""Reads what a trainer sends, within bounds: what no column can hold would look like an outage of the database.

What a job may choose is never refused, so that no job can stop its own output: texts are made printable and cut, and
numbers that no column holds are dropped (`control/resources/training`).

See docs/reference/training.md#internal-api.
"""

from collections.abc import Sequence
from dataclasses import replace

from control.api.protocol.reports import Json, items, read_object
from control.errors import InvalidFieldError
from control.resources.logs import LEVELS, printable
from policy.training.caches import MAX_ENTRIES, CacheEntry, CacheSummary
from policy.training.node_use import NodeSample
from policy.training.reports import BackendReport, JobReport, MetricPoint, OutputBatch, OutputLine
from policy.training.resources import Host
from policy.training.wire import count, text, texts

MAX_HOSTS = 10_000
MAX_JOBS = 100_000
MAX_NODES = 10_000
MAX_LINES = 1_000
"""The most lines in one batch, and the most metric points."""
_MAX_ID = 128
_MAX_NAME = 255
_MAX_TOKEN = 512
_MAX_REASON = 1_000
_MAX_TYPES = 100
"""The most types of GPUs on one host."""
_MAX_TIME_MS = 253_402_300_799_999
"""The last moment of the year 9999. A job may set the times of its files."""
_MAX_31 = 2**31 - 1
_MAX_53 = 2**53 - 1
_MAX_63 = 2**63 - 1


async def backend_report(body: Json) -> BackendReport:
    report = read_object("body", {**body, "hosts": [], "jobs": [], "samples": []}, _backend)
    hosts = await items(body, "hosts", _host, MAX_HOSTS)
    jobs = await items(body, "jobs", _job, MAX_JOBS)
    samples = await items(body, "samples", _sample, MAX_NODES) if "samples" in body else ()
    return replace(report, hosts=tuple(hosts), jobs=tuple(jobs), samples=tuple(samples))


async def output_batch(body: Json) -> OutputBatch:
    batch = read_object("body", {**body, "lines": [], "metrics": []}, _batch)
    lines = await items(body, "lines", _line, MAX_LINES)
    metrics = await items(body, "metrics", MetricPoint.from_wire, MAX_LINES)
    if batch.next_offset < batch.offset + bool(lines or metrics):
        raise InvalidFieldError("next_offset", "next_offset must be behind what the batch holds")
    return replace(batch, lines=lines, metrics=metrics)


async def cache_summary(body: Json) -> CacheSummary:
    summary = read_object("body", {**body, "entries": []}, _summary)
    return replace(summary, entries=tuple(await items(body, "entries", _entry, MAX_ENTRIES)))


def attempt_in(body: Json) -> int:
    return read_object("body", body, lambda wire: _number(wire, "attempt"))


def abilities_in(body: Json) -> Sequence[str]:
    """The abilities that a trainer names with a claim. One of an older version names none."""
    return read_object("body", body, lambda wire: texts(wire, "abilities") if "abilities" in wire else ())


def token_in(body: Json) -> str:
    return read_object("body", body, lambda wire: _name(wire, "token", _MAX_TOKEN))


def _backend(wire: Json) -> BackendReport:
    for name in ("trainer", "backend"):
        _name(wire, name, _MAX_ID)
    report = BackendReport.from_wire(wire)
    return replace(report, reason=report.reason and printable(report.reason)[:_MAX_REASON])


def _host(wire: Json) -> Host:
    _name(wire, "name")
    for name in ("millicpu", "memory_mib", "max_nodes"):
        _number(wire, name, _MAX_53)
    for name in ("gpus", "gpu_memory_mib"):
        for type in _object(wire, name):
            _name({name: type}, name)
            _number(wire[name], type, _MAX_53)
    return Host.from_wire(wire)


def _job(wire: Json) -> JobReport:
    _name(wire, "job_id", _MAX_ID)
    _number(wire, "attempt")
    report = JobReport.from_wire(wire)
    if len(report.nodes) > MAX_NODES:
        raise ValueError(f"nodes must be at most {MAX_NODES}")
    for node in report.nodes:
        _name({"nodes.host": node.host}, "nodes.host")
        if max(node.rank, abs(node.exit_status or 0)) > _MAX_31:
            raise ValueError(f"rank and exit_status must be at most {_MAX_31}")
    return report


def _summary(wire: Json) -> CacheSummary:
    _name(wire, "project_id", _MAX_ID)
    _number(wire, "at_ms", _MAX_TIME_MS)
    return CacheSummary.from_wire(wire)


def _entry(wire: Json) -> CacheEntry:
    """An entry. Its path is the job's choice: what cannot be shown is replaced."""
    entry = CacheEntry.from_wire(wire)
    modified_ms = min(entry.modified_ms, _MAX_TIME_MS)
    return replace(entry, path=printable(entry.path), modified_ms=modified_ms)


def _sample(wire: Json) -> NodeSample:
    _name(wire, "job_id", _MAX_ID)
    for name in ("attempt", "rank"):
        _number(wire, name)
    _number(wire, "timestamp_ms", _MAX_TIME_MS)
    for name in ("cpu_millicores", "memory_bytes"):
        _number(wire, name, _MAX_53)
    sample = NodeSample.from_wire(wire)
    if max(sample.storage_bytes or 0, sample.storage_total_bytes or 0) > _MAX_53:
        raise ValueError(f"storage_bytes and storage_total_bytes must be at most {_MAX_53}")
    return sample


def _batch(wire: Json) -> OutputBatch:
    for name in ("attempt", "rank"):
        _number(wire, name)
    for name in ("offset", "next_offset"):
        _number(wire, name, _MAX_63)
    return OutputBatch.from_wire(wire)


def _line(wire: Json) -> OutputLine:
    line = OutputLine.from_wire(wire)
    if line.level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}")
    return line


def _number(wire: Json, name: str, most: int = _MAX_31) -> int:
    value = count(wire, name)
    if value > most:
        raise ValueError(f"{name} must be at most {most}")
    return value


def _name(wire: Json, name: str, most: int = _MAX_NAME) -> str:
    value = text(wire, name)
    if not 1 <= len(value) <= most or "\0" in value:
        raise ValueError(f"{name} must be text of 1 to {most} characters, without NUL")
    return value


def _object(wire: Json, name: str) -> Json:
    value = wire[name]
    if not isinstance(value, dict) or len(value) > _MAX_TYPES:
        raise TypeError(f"{name} must be an object of at most {_MAX_TYPES} members")
    return value
