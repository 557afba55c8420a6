"""Large bodies: the CPU of a 400 kB prompt beside the peers', and the memory that 99 MB bodies take."""

import http.client
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.figures import Findings
from bench.load import Call, run_wrk
from bench.programs.peers import chat_body
from bench.programs.processes import BenchError
from bench.programs.subjects import Rig, Subject, proxy_cpu_s

PROMPT_BYTES = 400_000
HUGE_BYTES = 99_000_000
SECONDS = 3
ROUNDS = 5


def measure_prompts(subjects: Sequence[Subject], rig: Rig, findings: Findings, scratch: Path) -> None:
    """Measure the CPU of 400 kB prompts over eight connections, in rounds."""
    rounds: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for turn in range(ROUNDS):
        for subject in subjects:
            print(f"  {subject.name:18} prompts of 400 kB, round {turn + 1} of {ROUNDS}", flush=True)
            large = replace(subject.call, body=chat_body(subject.call.model, prompt_bytes=PROMPT_BYTES))
            load, usage = rig.measure(
                lambda large=large: run_wrk(large, 8, SECONDS, scratch),  # type: ignore[misc]  # binds the loop's value
                subject.parts,
            )
            rounds[subject.name].append(proxy_cpu_s(usage) * 1e6 / load.requests)
    for name, costs_us in rounds.items():
        findings.facts[f"prompt_us {name}"] = costs_us
        findings.notes.append(
            f"a prompt of 400 kB through {name}: {statistics.median(costs_us):,.0f} CPU µs"
            f" ({min(costs_us):,.0f} to {max(costs_us):,.0f})"
        )


def measure_huge_bodies(subject: Subject, findings: Findings) -> None:
    """Measure by how much two 99 MB bodies, one after the other, raise the memory high-water mark.

    The first may cost a few copies (as read, as parsed, as sent); the second should reuse their memory.
    """
    print(f"  {subject.name:18} bodies of 99 MB", flush=True)
    marks = [_high_water_mib(subject.proxy_pids())]
    for _ in range(2):
        _send_huge(subject.call)
        marks.append(_high_water_mib(subject.proxy_pids()))
    bodies_mib = HUGE_BYTES / 2**20
    findings.facts["huge_body_times"] = [(marks[1] - marks[0]) / bodies_mib]
    findings.facts["next_huge_body_times"] = [(marks[2] - marks[1]) / bodies_mib]
    findings.notes.append(
        f"a body of 99 MB raised the memory high-water mark of {subject.name} by {marks[1] - marks[0]:.0f} MiB,"
        f" the next one by {marks[2] - marks[1]:.0f} MiB more"
    )


def _send_huge(call: Call) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", call.port, timeout=120)
    body = chat_body(call.model, prompt_bytes=HUGE_BYTES).encode()
    connection.request("POST", call.path, body, {"content-type": "application/json", **call.headers})
    status = connection.getresponse().status
    connection.close()
    if status != 200:
        raise BenchError(f"a body of {len(body)} bytes was answered {status}")


def _high_water_mib(pids: Sequence[int]) -> float:
    return sum(_status(pid)["VmHWM"] for pid in pids) / 1024


def _status(pid: int) -> Mapping[str, int]:
    """The values of /proc/PID/status that are in kB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
