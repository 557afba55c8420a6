"""Load by wrk, bounded in connections and seconds, on loopback only."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.programs.processes import OTHER_CORE, BenchError

_UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6, "m": 60e6}


@dataclass(frozen=True, slots=True)
class Call:
    """The request that every connection repeats. `script`: lines of Lua by which wrk changes it."""

    port: int
    path: str
    body: str
    headers: Mapping[str, str] = field(default_factory=dict)
    script: Sequence[str] = ()
    is_tls: bool = False

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://127.0.0.1:{self.port}{self.path}"

    @property
    def model(self) -> str:
        """The model that the call names."""
        return self.body.split('"', 4)[3]


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of one run of wrk."""

    requests: int
    rate_per_s: float
    p50_us: float
    p99_us: float


def run_wrk(call: Call, connections: int, seconds: int, scratch: Path, under: Sequence[str] = ()) -> Load:
    """Send calls for `seconds`, as fast as `connections` allow. Raises `BenchError` if any answer is not 2xx.

    `under`: a command that runs the load and watches something meanwhile.
    """
    script = scratch / "call.lua"
    lines = [
        'wrk.method = "POST"',
        f"wrk.body = [==[{call.body}]==]",
        'wrk.headers["content-type"] = "application/json"',
    ]
    lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in call.headers.items()]
    script.write_text("\n".join([*lines, *call.script]))
    argv = [*under, "taskset", "-c", str(OTHER_CORE), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    argv += ["--timeout", "20s", "-s", str(script), call.url]
    try:
        process = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchError(f"wrk (Debian package wrk) failed: {error}") from error
    return parse(process.stdout)


def parse(text: str) -> Load:
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)|Socket errors: .*", text)
    if bad:
        raise BenchError(f"calls failed: {bad[0]}")
    count = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if not count or not rate or not int(count[1]):
        raise BenchError(f"wrk printed no figures:\n{text}")
    return Load(int(count[1]), float(rate[1]), _percentile(text, "50%"), _percentile(text, "99%"))


def _percentile(text: str, which: str) -> float:
    match = re.search(rf"^\s+{which}\s+([\d.]+)(us|ms|s|m) ?$", text, re.MULTILINE)
    if not match:
        raise BenchError(f"wrk printed no {which} latency")
    return float(match[1]) * _UNITS_US[match[2]]
