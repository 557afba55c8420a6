"""What a translated chunk of a stream costs, beside one that passes: `python -m bench.studies.translated_stream`.

The same upstream stream, through one gateway, to callers of Chat Completions (passed) and Messages (translated), in
turn. CPU of worker and supervisor per chunk that the upstream sent, kernel time included.
"""

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.load import Call
from bench.programs.gateway import Gateway, start_gateway
from bench.programs.peers import CHAT, chat_body
from bench.programs.subjects import Rig, Subject, own, start_rig
from bench.studies.stream_parts import FRAMES, measure_flood

STREAMS = 300
ROUNDS = 5
PATHS = {"passed": CHAT, "translated": "/v1/messages"}


def measure(rig: Rig, gateway: Gateway) -> dict[str, list[float]]:
    """CPU in µs per chunk, a figure per round."""
    seen: dict[str, list[float]] = {name: [] for name in PATHS}
    for turn in range(ROUNDS):
        for name, path in PATHS.items():
            subject = _subject(gateway, name, replace(gateway.open, path=path))
            figures = measure_flood(subject, rig, STREAMS)
            per_chunk = figures["cpu_us_per_frame"] * figures["frames"] / (STREAMS * FRAMES)
            lost = figures["broken"] + figures["refused"]
            print(f"  round {turn + 1}: {name:12} {per_chunk:6.1f} µs a chunk, {lost:.0f} streams lost", flush=True)
            seen[name].append(per_chunk)
    return seen


def _subject(gateway: Gateway, name: str, call: Call) -> Subject:
    return own(gateway, f"tollgate {name}", call)


def main() -> None:
    """Measure and print the medians."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        rig = start_rig(stack, lambda port: Call(port, CHAT, chat_body("mock"), {}), Path(scratch))
        gateway = start_gateway(rig.direct.port, Path(scratch))
        stack.callback(gateway.program.stop)
        medians = {name: statistics.median(rounds) for name, rounds in measure(rig, gateway).items()}
    for name, figure in medians.items():
        print(f"{name:12} {figure:6.1f} µs a chunk, {figure / medians['passed']:.2f} of a passed one")


if __name__ == "__main__":
    main()
