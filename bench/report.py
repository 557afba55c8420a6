"""Renders the results of a run: on the terminal, and for a full run in bench/RESULTS.md."""

import datetime
import statistics
from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path

from bench.figures import COMPARED_AT, GOVERNED, Figures, Findings, Measured, Sample
from bench.goals import GOALS
from bench.quiet import BUSY_SHARE

_HEAD = [
    "gateway",
    "proxy CPU µs",
    "user",
    "system",
    "context switches",
    "system calls",
    "Redis CPU µs",
    "control CPU µs",
    "all CPU µs",
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


def write_report(findings: Findings, path: Path | None) -> None:
    """Print the report, and write it to `path` if there is one."""
    text = "\n".join(_lines(findings, full=path is not None)) + "\n"
    print(text)
    if path is not None:
        path.write_text(text)


def _lines(findings: Findings, *, full: bool) -> list[str]:
    lines = ["# Benchmark results", ""]
    lines += [
        f"{datetime.date.today()}, {findings.machine}. Each proxy has one pinned core. See also [NOTES.md](NOTES.md).",
        "",
    ]
    lines += [*_spread_and_load(findings), "", "## Goals", "", *_goals(findings, full=full), ""]
    figures = [one for one in findings.figures.values() if one.samples]
    for connections in sorted({count for one in figures for count in one.samples}):
        measured = [one for one in figures if one.samples.get(connections)]
        lines += [f"## {connections} connections, small chat completions, per request", ""]
        lines += _table(_HEAD, [_row(one, connections) for one in measured])
        lines += ["", *_ratios(measured, connections), ""]
    if figures:
        lines += ["## Memory and idle CPU of the proxy's processes", "", *_memory(figures), ""]
    lines += _streams(list(findings.figures.values()))
    if findings.notes:
        lines += ["## Further measurements", "", *(f"- {note}" for note in findings.notes), ""]
    lines += ["## Versions", "", *(f"- {tool}" for tool in findings.tools)]
    lines += [f"- {one.name}: {one.version}" for one in findings.figures.values()]
    lines += [f"- {name}: NOT MEASURED: {why}" for name, why in findings.missing.items()]
    took = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in findings.took.items())
    return [*lines, "", f"The run took {sum(findings.took.values()) / 60:.1f} minutes: {took}."]


def _goals(findings: Findings, *, full: bool) -> list[str]:
    """One line per goal; a short run shows only the goals that it measured."""
    return [f"- {goal.line(findings)}" for goal in GOALS if full or goal.is_measured(findings)]


def _spread_and_load(findings: Findings) -> list[str]:
    """Explain how to read the figures, and what else used the machine."""
    lines = [
        "Figures are medians of interleaved rounds, in brackets the least and the most; a ratio is taken within each"
        " round. CPU is the scheduler's run time: all threads, the kernel's share included."
    ]
    shares = findings.foreign_shares
    if shares:
        lines.append(
            f"Other programs used {statistics.median(shares):.0%} of a core in the median measurement,"
            f" {max(shares):.0%} at most."
        )
    if shares and max(shares) >= BUSY_SHARE:
        lines.append("The machine was shared: latencies and rates mean little here.")
    return lines


def _row(one: Figures, connections: int) -> list[str]:
    columns = (
        lambda s: s.proxy.user_us,
        lambda s: s.proxy.system_us,
        lambda s: s.proxy.switches,
    )
    further = (
        lambda s: s.redis.cpu_us,
        lambda s: s.control.cpu_us,
        lambda s: s.whole.cpu_us,
        lambda s: s.load.rate_per_s,
        _per_core,
        lambda s: s.load.p50_us,
        lambda s: s.load.p99_us,
    )
    return [
        one.name,
        _spread(Measured.of(one.cpu_us(connections))),
        *(_cell(one.median(connections, column)) for column in columns),
        _cell(one.system_calls) if connections == COMPARED_AT else "",
        *(_cell(one.median(connections, column)) for column in further),
    ]


def _per_core(sample: Sample) -> float:
    """Requests per second that one core of the proxy could serve: some peers are faster than the load generator."""
    return 1e6 / sample.proxy.cpu_us


def _ratios(figures: Sequence[Figures], connections: int) -> list[str]:
    ours = next(one for one in figures if one.name == GOVERNED)
    lines = []
    for one in figures:
        if one is not ours:
            ratio = Measured.ratio(ours.cpu_us(connections), one.cpu_us(connections))
            lines.append(
                f"- CPU of {GOVERNED} / {one.name}: {ratio.median:.3f} ({ratio.least:.3f} to {ratio.most:.3f})"
            )
    parts = {"worker": lambda s: s.worker.cpu_us, "supervisor": lambda s: s.supervisor.cpu_us}
    shares = (f"{name} {_spread(Measured.of(ours.rounds(connections, of)))} µs" for name, of in parts.items())
    return [*lines, f"- {GOVERNED}: {', '.join(shares)}"]


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


def _spread(measured: Measured) -> str:
    return f"{_cell(measured.median)} ({_cell(measured.least)} to {_cell(measured.most)})"


def _cell(value: float) -> str:
    if isnan(value):
        return ""
    return f"{value:,.1f}" if value < 1000 and value != int(value) else f"{value:,.0f}"
