"""The cost of the books in control: shipping, ingest and listing of each call's event, per call."""

import json
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.figures import COMPARED_AT, Findings, Measured
from bench.load import run_wrk
from bench.programs.gateway import Gateway, start_gateway
from bench.programs.processes import BenchError
from bench.programs.subjects import Rig

SECONDS = 4
ROUNDS = 5
HOLDBACK_S = 2
"""Events younger than this are not listed yet."""
PAGE = 1000
PATIENCE_S = 60


def measure_books(rig: Rig, findings: Findings, scratch: Path) -> None:
    """Measure control's CPU from a load's first call until the last of its events is listed, in rounds."""
    place = scratch / "books"
    place.mkdir()
    with ExitStack() as stack:
        gateway = start_gateway(rig.direct.port, place, settings={"TOLLGATE_EVENT_HOLDBACK_S": str(HOLDBACK_S)})
        stack.callback(gateway.program.stop)
        books = Books(gateway)
        books.load_and_list(1, place)
        rounds = []
        for turn in range(ROUNDS):
            print(f"  events of {SECONDS} s shipped, ingested and listed, round {turn + 1} of {ROUNDS}", flush=True)
            parts = {part: (lambda part=part: gateway.pids(part)) for part in gateway.PARTS}
            listed, usage = rig.measure(lambda: books.load_and_list(SECONDS, place), parts)
            rounds.append(usage["control"].cpu_s * 1e6 / listed)
    findings.facts["books_us"] = rounds
    figure = Measured.of(rounds)
    findings.notes.append(
        f"control, events shipped, ingested and listed: {figure.median:.1f} CPU µs a call"
        f" ({figure.least:.1f} to {figure.most:.1f})"
    )


class Books:
    """A gateway's events, listed in windows of which each begins where the last one ended."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._end = "2020-01-01T00:00:00Z"

    def load_and_list(self, seconds: int, scratch: Path) -> int:
        """Make calls, and list events until all of them were seen. Returns how many were."""
        load = run_wrk(self._gateway.governed, COMPARED_AT, seconds, scratch)
        listed = 0
        give_up_at = time.monotonic() + PATIENCE_S
        while listed < load.requests:
            if time.monotonic() > give_up_at:
                raise BenchError(f"only {listed} of {load.requests} events are listed after {PATIENCE_S} s")
            time.sleep(HOLDBACK_S)
            listed += self._list_window()
        return listed

    def _list_window(self) -> int:
        page = self._get(start_time=self._end, limit=PAGE)
        listed = len(page["items"])
        self._end = page["window"]["end_time"]
        while page["pagination"]["has_more"]:
            page = self._get(cursor=page["pagination"]["cursor"])
            listed += len(page["items"])
        return listed

    def _get(self, **query: object) -> Any:
        url = f"http://127.0.0.1:{self._gateway.control_port}/v1/gateway/events?{urllib.parse.urlencode(query)}"
        headers = {"authorization": f"Bearer {self._gateway.api_key}"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return json.load(answer)
