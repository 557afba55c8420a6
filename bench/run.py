"""`make bench` and `make bench-quick`: the same work through Tollgate and its peers, one pinned core each, in one run.

A measurement on a busy machine is rejected and repeated, unless `--shared` says that the machine is shared. Figures are
medians over interleaved rounds. Exit status 1 means that the machine stayed busy or that Tollgate failed. A missed goal
is a result, not a failure.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.bodies import measure_huge_bodies, measure_prompts
from bench.books import measure_books
from bench.figures import (
    BARE,
    BUILT,
    CALLS_ALONE,
    COMPARED_AT,
    GOVERNED,
    OPEN,
    OURS,
    Cost,
    Figures,
    Findings,
    Measured,
    NotMeasuredError,
    Sample,
)
from bench.latency import measure_latencies
from bench.load import Call, run_wrk
from bench.programs.gateway import start_gateway
from bench.programs.peers import CHAT, chat_body
from bench.programs.processes import BenchError, rss_mib, treat_sigterm_as_interrupt
from bench.programs.subjects import PEERS, Rig, Subject, own, start_all, start_rig
from bench.programs.system_calls import count_system_calls
from bench.quiet import BusyError
from bench.report import write_report
from bench.studies.long_work import measure_hostile_callers
from bench.studies.stream_parts import (
    measure_chunks,
    measure_first_bytes,
    measure_floods,
    measure_steady,
    note_what_was_kept,
)
from bench.usage import cpu_s

RESULTS = Path("bench/RESULTS.md")
ENVOY = "envoy"
STEADY_PEERS = ("nginx", ENVOY, "portkey")
"""Peers that serve 500 calls a second on one core."""
SYSTEM_CALLS = "system calls"
ROUNDS = 5
IDLE_S = 90
"""A time longer than any gateway keeps idle upstream connections."""


@dataclass(slots=True)
class Run:
    """The state that all parts of a run share."""

    scratch: Path
    rig: Rig
    subjects: list[Subject]
    findings: Findings

    @contextlib.contextmanager
    def part(self, name: str, *, needed: bool = False) -> Iterator[None]:
        """Print the part's name and duration. A failure is noted in the report, or raised if the part is `needed`."""
        print(f"== {name}", flush=True)
        start_s = time.monotonic()
        try:
            yield
        except BusyError:
            raise
        except (BenchError, OSError, subprocess.SubprocessError) as error:
            if needed:
                raise
            print(f"  failed: {error}", flush=True)
            self.findings.missing[name] = str(error)
        took_s = self.findings.took[name] = time.monotonic() - start_s
        print(f"== {name}: {took_s:.0f} s", flush=True)

    @contextlib.contextmanager
    def leaving_out(self, subject: Subject, part: str) -> Iterator[None]:
        """Note a peer's failure in the report and leave the peer out from then on. Tollgate's own failure is raised."""
        try:
            yield
        except BusyError:
            raise
        except BenchError as error:
            if subject.name in OURS:
                raise
            print(f"  {subject.name}: not measured further: {error}", flush=True)
            self.findings.missing[subject.name] = f"failed at {part}: {error}"
            self.subjects.remove(subject)

    def named(self, *names: str) -> list[Subject]:
        return [subject for subject in self.subjects if subject.name in names]


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; write bench/RESULTS.md after a full run. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one load on Tollgate, nginx and Envoy, in two minutes")
    parser.add_argument("--shared", action="store_true", help="measure beside other programs; report what they used")
    parser.add_argument("--part", choices=PARTS, action="append", help="measure only this; may be repeated")
    options = parser.parse_args(argv)
    treat_sigterm_as_interrupt()
    try:
        with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as scratch, ExitStack() as stack:
            findings = _run(stack, Path(scratch), options)
    except BenchError as error:
        print(f"bench: {error}; no report", file=sys.stderr)
        return 1
    write_report(findings, None if options.quick or options.part else RESULTS)
    failed = [
        name for name in findings.missing if name not in (*PEERS, SYSTEM_CALLS) and not name.startswith("streams of ")
    ]
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    sys.stderr.flush()
    print(f"cpu_ratio tollgate_governed/envoy_plain {_ratio_to_envoy(findings)}", flush=True)
    return 1 if failed else 0


def _ratio_to_envoy(findings: Findings) -> str:
    try:
        ratio = Measured.ratio(findings.of(GOVERNED).cpu_us(), findings.of(ENVOY).cpu_us())
    except NotMeasuredError:
        return "nan"
    return f"{ratio.median:.2f} ({ratio.least:.2f} to {ratio.most:.2f})"


def _run(stack: ExitStack, scratch: Path, options: argparse.Namespace) -> Findings:
    findings = Findings(_machine(), _tools())
    start_s = time.monotonic()
    print("== starting", flush=True)
    rig = start_rig(stack, lambda port: Call(port, CHAT, chat_body("bench")), scratch, may_be_shared=options.shared)
    names = [GOVERNED, OPEN, BARE, *PEERS]
    if options.quick or options.part:
        names = [GOVERNED, "nginx", ENVOY]
        names += [BUILT] if options.quick else []
        names += ["portkey"] if "latency" in (options.part or ()) else []
    subjects, missing = start_all(stack, rig, scratch, names)
    findings.missing.update(missing)
    findings.foreign_shares = rig.machine.foreign_shares
    findings.figures = {subject.name: Figures(subject.name, subject.version) for subject in subjects}
    run = Run(scratch, rig, subjects, findings)
    for subject in subjects:
        findings.figures[subject.name].idle_mib = rss_mib(subject.proxy_pids())
    _warm_up(run)
    findings.took["starting"] = time.monotonic() - start_s
    if not options.part:
        _completions(run, (COMPARED_AT,) if options.quick else (1, 16, COMPARED_AT, 256), 4)
        _count_system_calls(run)
        _note_memory_after(run)
    for name in () if options.quick else options.part or PARTS:
        with run.part(name):
            PARTS[name](run)
    return findings


def _floods(run: Run) -> None:
    measure_floods([one for one in run.subjects if one.name not in CALLS_ALONE], run.rig, run.findings)


def _slow_streams(run: Run) -> None:
    measure_steady(run.named(GOVERNED)[0], run.rig, run.findings)


def _latencies(run: Run) -> None:
    measure_latencies(run.named(GOVERNED, *STEADY_PEERS), run.rig, run.findings, run.scratch)


def _beside(run: Run) -> list[Subject]:
    return run.named(GOVERNED, "nginx", ENVOY)


def _completions(run: Run, connections: Sequence[int], seconds: int) -> None:
    """Measure small completions, in interleaved rounds."""
    for count in connections:
        with run.part(f"{count} connections", needed=True):
            for turn in range(ROUNDS):
                for subject in list(run.subjects):
                    if subject.name == BARE and count != COMPARED_AT:
                        continue
                    print(f"  {subject.name:18} {count:4} connections, round {turn + 1} of {ROUNDS}", flush=True)
                    _take_sample(run, subject, count, seconds)


def _warm_up(run: Run) -> None:
    """Fill pools and caches, and compile what is compiled lazily."""
    for subject in list(run.subjects):
        with run.leaving_out(subject, "the warm-up"):
            measure(subject, run.rig, 16, 5 if subject.is_python_or_node else 2, run.scratch)


def _take_sample(run: Run, subject: Subject, count: int, seconds: int) -> None:
    figures = run.findings.figures[subject.name]
    with run.leaving_out(subject, f"{count} connections"):
        sample = measure(subject, run.rig, count, _fair_s(subject, seconds), run.scratch)
        figures.samples.setdefault(count, []).append(sample)
        figures.loaded_mib = max(figures.loaded_mib, rss_mib(subject.proxy_pids()))


def _fair_s(subject: Subject, seconds: int) -> int:
    """Calls in flight at a load's end have cost CPU and are not counted: of slow peers they are a larger share."""
    return 2 * seconds if subject.is_python_or_node else seconds


def measure(subject: Subject, rig: Rig, connections: int, seconds: int, scratch: Path) -> Sample:
    """Run one load. Returns its figures with the cost per request of each part."""
    load, usage = rig.measure(lambda: run_wrk(subject.call, connections, seconds, scratch), subject.parts)
    costs = {part: Cost.of(usage[part], load.requests) for part in subject.parts}
    rest = (costs.get(part, Cost()) for part in ("supervisor", "redis", "control"))
    return Sample(load, costs["worker"], *rest)


def _count_system_calls(run: Run) -> None:
    """Count each proxy's system calls per request, in a short load of its own."""
    print(f"== {SYSTEM_CALLS}", flush=True)
    for subject in run.subjects:

        def load(under: Sequence[str], subject: Subject = subject) -> int:
            return run_wrk(subject.call, COMPARED_AT, 2, run.scratch, under).requests

        try:
            counted = count_system_calls(subject.proxy_pids(), load, run.scratch)
        except BenchError as error:
            run.findings.missing[SYSTEM_CALLS] = str(error)
            return
        run.findings.figures[subject.name].system_calls = counted


def _note_memory_after(run: Run) -> None:
    for subject in run.subjects:
        run.findings.figures[subject.name].after_mib = rss_mib(subject.proxy_pids())


def _measure_idle(run: Run) -> None:
    """Measure the CPU of each proxy without calls, and the memory that it still holds after the load."""
    print(f"  no calls for {IDLE_S} s", flush=True)
    before = {subject.name: cpu_s(subject.proxy_pids()) for subject in run.subjects}
    time.sleep(IDLE_S)
    for subject in run.subjects:
        spent_s = cpu_s(subject.proxy_pids()) - before[subject.name]
        run.findings.figures[subject.name].idle_cpu_ms_per_s = spent_s * 1000 / IDLE_S
    _note_memory_after(run)
    note_what_was_kept(run.subjects, run.findings)


def _measure_workers(run: Run) -> None:
    """Compare one proxy of two workers with two proxies of one worker: a call must cost the same.

    The traffic per worker is the same in both. Here all share one saturated core and so each other's caches, in both
    cases, so the ratio leaves that out. One worker alone is reported for comparison.
    """
    with ExitStack() as stack:
        one, other, both = (
            _start_apart(run, stack, name, workers) for name, workers in (("one", 1), ("other", 1), ("both", 2))
        )
        sides = {"1 worker alone": [one], "2 proxies of 1 worker": [one, other], "1 proxy of 2 workers": [both] * 2}
        costs: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(ROUNDS):
            for name, subjects in sides.items():
                print(f"  {name:21} {COMPARED_AT:4} connections each, round {turn + 1} of {ROUNDS}", flush=True)
                costs[name].append(_proxies_us(run, subjects, 5))
    _, run.findings.facts["workers_us apart"], run.findings.facts["workers_us together"] = costs.values()
    for name, rounds in costs.items():
        run.findings.notes.append(
            f"governed calls, {name} on one core, {COMPARED_AT} connections a worker:"
            f" {statistics.median(rounds):.1f} CPU µs of the proxy ({min(rounds):.1f} to {max(rounds):.1f})"
        )


def _start_apart(run: Run, stack: ExitStack, name: str, workers: int) -> Subject:
    place = run.scratch / f"workers-{name}"
    place.mkdir()
    gateway = start_gateway(run.rig.direct.port, place, workers)
    stack.callback(gateway.program.stop)
    subject = own(gateway, name, gateway.governed)
    _proxies_us(run, [subject], 2)
    return subject


def _proxies_us(run: Run, subjects: Sequence[Subject], seconds: int) -> float:
    """CPU µs per call of the proxies behind `subjects`, each under its own load, all at once. One may occur twice."""

    def load(number: int) -> int:
        place = run.scratch / f"load-{number}"
        place.mkdir(exist_ok=True)
        return run_wrk(subjects[number].call, COMPARED_AT, seconds, place).requests

    def load_all() -> int:
        with ThreadPoolExecutor(len(subjects)) as loads:
            return sum(loads.map(load, range(len(subjects))))

    def proxies() -> list[int]:
        return sorted({pid for subject in subjects for pid in subject.proxy_pids()})

    def rest() -> list[int]:
        parts = {pid for subject in subjects for find in subject.parts.values() for pid in find()}
        return sorted(parts.difference(proxies()))

    calls, usage = run.rig.measure(load_all, {"proxies": proxies, "rest": rest})
    return usage["proxies"].cpu_s * 1e6 / calls


def _measure_policy(run: Run) -> None:
    facts = _study(run, "bench.studies.policy_scale")
    run.findings.facts.update({name: [value] for name, value in facts.items()})
    run.findings.facts.update(_study(run, "bench.studies.deep_trees"))


def _study(run: Run, module: str) -> dict[str, Any]:
    """Run a study by itself, and note what it prints. Returns its facts."""
    facts = run.scratch / f"{module}.json"
    argv = [sys.executable, "-m", module, "--folder", str(run.scratch), "--facts", str(facts)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            print(f"  {line}", end="", flush=True)
            run.findings.notes.append(line.strip())
    if program.returncode:
        raise BenchError(f"{module} ended with status {program.returncode}")
    figures: dict[str, Any] = json.loads(facts.read_text())
    return figures


def _machine() -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in info if "model name" in line), "unknown processor")
    if sys.base_prefix == "/usr":
        built = "the distribution's build"  # Debian's is optimised, though its configuration does not say so
    else:
        is_optimised = "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS"))  # docs/hot-path.md
        built = f"configured {'with' if is_optimised else 'without'} --enable-optimizations"
    python = f"Python {platform.python_version()} of {sys.base_prefix} ({built})"
    return f"{os.cpu_count()} cores ({model}), {platform.system()} {platform.release()}, {python}"


def _tools() -> list[str]:
    """Versions of what else affects the figures. `wrk -v` exits with 1 and prints its version anyway."""
    questions = {"Tollgate's commit": ["git", "describe", "--always", "--dirty"], "load": ["wrk", "-v"]}
    questions["Redis"] = ["redis-server", "--version"]
    versions = []
    for name, argv in questions.items():
        if shutil.which(argv[0]) is None:
            versions.append(f"{name}: no {argv[0]} on PATH")
            continue
        lines = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False).stdout.splitlines()
        versions.append(f"{name}: {lines[0].strip() if lines else 'unknown'}")
    return versions


PARTS: Mapping[str, Callable[[Run], None]] = {
    "streams at once": _floods,
    "idle": _measure_idle,
    "chunks": lambda run: measure_chunks(_beside(run), run.rig, run.findings),
    "slow streams": _slow_streams,
    "latency": _latencies,
    "first bytes": lambda run: measure_first_bytes(_beside(run), run.rig, run.findings),
    "prompts": lambda run: measure_prompts(_beside(run), run.rig, run.findings, run.scratch),
    "huge bodies": lambda run: measure_huge_bodies(run.named(GOVERNED)[0], run.findings),
    "books": lambda run: measure_books(run.rig, run.findings, run.scratch),
    "two workers": _measure_workers,
    "scale of policy": _measure_policy,
    "hostile callers": lambda run: measure_hostile_callers(run.rig, run.findings, run.scratch),
}
"""The parts of a whole run after the calls, in this order; each can be measured alone with `--part`."""


if __name__ == "__main__":
    raise SystemExit(main())
