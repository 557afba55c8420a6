"""Latency and CPU of calls while metrics go to a collector: `python -m bench.studies.otlp_metrics`.

Gateways without OTLP, with a good collector, one that is away, one that never answers, and one that is full, in turn.
They export every second, sixty times as often as by default. Each is compared with the first, round by round.
"""

import argparse
import statistics
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.figures import GOVERNED
from bench.latency import RATE_PER_S, measure_latency
from bench.load import Call
from bench.programs.gateway import start_gateway
from bench.programs.peers import CHAT, chat_body
from bench.programs.processes import free_port
from bench.programs.subjects import Rig, Subject, own, start_rig
from bench.usage import cpu_s

NONE = "none"
FIGURES = {"p50_us": "p50", "p99_us": "p99", "cpu_s": "CPU"}


@contextmanager
def collector(status: int) -> Iterator[str]:
    """A collector that answers so; 0: never. Yields its URL."""
    end = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if not status:
                end.wait()
                return
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        end.set()
        server.shutdown()


def start_gateways(stack: ExitStack, rig: Rig, scratch: Path) -> list[Subject]:
    """A gateway per kind of collector, all running at once."""
    urls = {
        NONE: "",
        "good": stack.enter_context(collector(200)),
        "away": f"http://127.0.0.1:{free_port()}",
        "never answers": stack.enter_context(collector(0)),
        "full": stack.enter_context(collector(503)),
    }
    subjects = []
    for name, url in urls.items():
        folder = scratch / name.replace(" ", "-")
        folder.mkdir()
        patience = {"TOLLGATE_REDIS_TIMEOUT_S": "1"}  # five gateways share the cores
        otlp = {
            **patience,
            "TOLLGATE_METRICS": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        }
        gateway = start_gateway(rig.direct.port, folder, settings=otlp if url else patience)
        stack.callback(gateway.program.stop)
        subjects.append(replace(own(gateway, GOVERNED, gateway.governed), name=name))
    return subjects


def measure(subject: Subject, rig: Rig, scratch: Path, rate_per_s: int) -> Mapping[str, float]:
    """Latencies at a steady rate, and the CPU of worker and supervisor meanwhile."""
    pids = subject.proxy_pids()
    before_s = cpu_s(pids)
    latencies = measure_latency(subject.call, subject.parts, rig, scratch, rate_per_s)
    return {**latencies, "cpu_s": cpu_s(pids) - before_s}


def show(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
    """Print each figure's median, and that of its ratio to the same round's without OTLP."""
    for name in rounds[0]:
        texts = []
        for key, label in FIGURES.items():
            median = statistics.median(figures[name][key] for figures in rounds)
            ratios = sorted(figures[name][key] / figures[NONE][key] for figures in rounds)
            amount = f"{median:.2f} s" if key == "cpu_s" else f"{median:,.0f} µs"
            texts.append(f"{label} {amount} ({statistics.median(ratios):.2f}: {ratios[0]:.2f} to {ratios[-1]:.2f})")
        print(f"{name:14} {', '.join(texts)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=int, default=RATE_PER_S, help="calls a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scratch = Path(folder)
        rig = start_rig(stack, lambda port: Call(port, CHAT, chat_body("bench")), scratch, may_be_shared=True)
        subjects = start_gateways(stack, rig, scratch)
        rounds = []
        for turn in range(options.rounds):
            turned = subjects[turn % len(subjects) :] + subjects[: turn % len(subjects)]
            measured = {subject.name: measure(subject, rig, scratch, options.rate) for subject in turned}
            rounds.append({subject.name: measured[subject.name] for subject in subjects})
            print(f"round {turn + 1} of {options.rounds}", flush=True)
        show(rounds)


if __name__ == "__main__":
    main()
