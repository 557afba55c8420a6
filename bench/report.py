"""Renders the results of a run: on the terminal, and for a full run in bench/RESULTS.md."""

import datetime
from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path

from bench.figures import GOVERNED, Figures, Findings, Sample
from bench.goals import GOALS

_HEAD = [
    "gateway",
    "proxy CPU µs",
    "Redis CPU µs",
    "control CPU µs",
    "requests/s",
    "requests/s per core of the proxy",
    "p50 µs",
    "p99 µs",
]
_STREAM_COLUMNS = {
    "at_once": "streams at once",
    "refused": "refused",
    "broken": "broken off",
    "stalls": "stalls",
    "frames": "chunks",
    "cpu_us_per_frame": "CPU µs per chunk",
    "kib_per_stream": "KiB per stream",
    "kept_percent": "still held %",
    "first_byte_p50_us": "first byte p50 µs",
    "first_byte_p99_us": "p99 µs",
}


def write_report(found: Findings, path: Path | None) -> None:
    """Print the report, and write it to `path` if there is one."""
    text = "\n".join(_lines(found, full=path is not None)) + "\n"
    print(text)
    if path is not None:
        path.write_text(text)


def _lines(found: Findings, *, full: bool) -> list[str]:
    lines = ["# Benchmark results", ""]
    lines += [
        f"{datetime.date.today()}, {found.machine}. Each proxy has one pinned core. See also [NOTES.md](NOTES.md).",
        "",
    ]
    lines += ["## Goals", "", *_goals(found, full=full), ""]
    figures = [one for one in found.figures.values() if one.samples]
    for connections in sorted(figures[0].samples):
        measured = [one for one in figures if one.samples.get(connections)]
        lines += [f"## {connections} connections, small chat completions, per request", ""]
        lines += _table(_HEAD, [_row(one, connections) for one in measured])
        lines += ["", *_ratios(measured, connections), ""]
    lines += ["## Memory and idle CPU of the proxy's processes", "", *_memory(figures), ""]
    lines += _streams(figures)
    if found.notes:
        lines += ["## Further measurements", "", *(f"- {note}" for note in found.notes), ""]
    lines += ["## Versions", "", *(f"- {tool}" for tool in found.tools)]
    lines += [f"- {one.name}: {one.version}" for one in figures]
    lines += [f"- {name}: NOT MEASURED: {why}" for name, why in found.missing.items()]
    took = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in found.took.items())
    return [*lines, "", f"The run took {sum(found.took.values()) / 60:.1f} minutes: {took}."]


def _goals(found: Findings, *, full: bool) -> list[str]:
    """One line per goal; a short run shows only the goals that it measured."""
    return [f"- {goal.line(found)}" for goal in GOALS if full or goal.is_measured(found)]


def _row(one: Figures, connections: int) -> list[str]:
    columns = (
        lambda s: s.proxy_us,
        lambda s: s.redis_us,
        lambda s: s.control_us,
        lambda s: s.load.rate_per_s,
        _per_core,
        lambda s: s.load.p50_us,
        lambda s: s.load.p99_us,
    )
    return [one.name, *(_cell(one.median(connections, column)) for column in columns)]


def _per_core(sample: Sample) -> float:
    """Requests per second that one core of the proxy could serve: some peers are faster than the load generator."""
    return 1e6 / sample.proxy_us


def _ratios(figures: Sequence[Figures], connections: int) -> list[str]:
    ours = next(one for one in figures if one.name == GOVERNED)
    lines = [
        f"- CPU of {GOVERNED} / {one.name}: {ours.cpu_us(connections) / one.cpu_us(connections):.3f}"
        for one in figures
        if one is not ours
    ]
    worker, supervisor = (ours.median(connections, of) for of in (lambda s: s.worker_us, lambda s: s.supervisor_us))
    return [*lines, f"- {GOVERNED}: worker {worker:.1f} µs, supervisor {supervisor:.1f} µs"]


def _memory(figures: Sequence[Figures]) -> list[str]:
    rows = []
    for one in figures:
        idle_cpu = "" if one.idle_cpu_ms_per_s is None else f"{one.idle_cpu_ms_per_s:.1f}"
        rows.append([one.name, *(f"{mib:.0f}" for mib in (one.idle_mib, one.loaded_mib, one.after_mib)), idle_cpu])
    return _table(["gateway", "idle MiB", "loaded MiB", "after MiB", "idle CPU ms/s"], rows)


def _streams(figures: Sequence[Figures]) -> list[str]:
    rows = [
        [one.name, *(_cell(one.streams.get(key, nan)) for key in _STREAM_COLUMNS)] for one in figures if one.streams
    ]
    if not rows:
        return []
    return ["## Streams", "", *_table(["gateway", *_STREAM_COLUMNS.values()], rows), ""]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *(_line(row) for row in rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: float) -> str:
    if isnan(value):
        return ""
    return f"{value:,.1f}" if value < 1000 and value != int(value) else f"{value:,.0f}"
