"""`python -m tests.clients.original.script CONTROL PROXY API_KEY REPLICA KIND…` prints what became of each method.

It runs in the SDK's environment. A line is `{"api", "method", "case", "client", "outcome", "status", "text"}`.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from baseten import client as sdk

from tests.clients.original import gateway, inference, models, training
from tests.clients.original.place import Place
from tests.clients.original.recording import Kind, Record, Recorder

CLIENTS: dict[str, tuple[Any, Any]] = {
    "sync": (sdk.ManagementClient, sdk.InferenceClient),
    "async": (sdk.AsyncManagementClient, sdk.AsyncInferenceClient),
}


def manage(place: Place, kind: Kind, runner: asyncio.Runner) -> list[Record]:
    """Call every method of the management API."""
    client = CLIENTS[kind][0](api_key=place.api_key, base_url_override=place.control_url)
    recorder = Recorder("management", kind, client.api, runner)
    causes = [_cause(partial(steps, recorder, place)) for steps in (gateway.run, models.run, training.run)]
    recorder.close("; ".join(filter(None, causes)))
    return recorder.records


def infer(place: Place, kind: Kind, runner: asyncio.Runner) -> list[Record]:
    """Call every method of the inference API, on a deployment with a replica."""
    scene = inference.Scene.create(place, f"called-{kind}")
    records: list[Record] = []

    def recorder_at(path: str) -> Recorder:
        client = CLIENTS[kind][1](api_key=place.api_key, base_url_override=place.proxy_url + path)
        return Recorder("inference", kind, client.api, runner, records)

    recorder = recorder_at(scene.path)
    regional = recorder_at(f"{scene.path}/environments/{inference.ENVIRONMENT}")
    recorder.close(_cause(partial(inference.run, recorder, regional, scene)))
    return records


def _cause(steps: Callable[[], None]) -> str:
    """Run the steps; return why they broke off, or "" if they did not."""
    try:
        steps()
    except Exception as error:  # noqa: BLE001 - the methods that were not reached are reported with it
        traceback.print_exc()
        return f"not reached: {type(error).__name__}: {error}"
    return ""


def main() -> None:
    place = Place(*sys.argv[1:5])
    for name in sys.argv[5:]:
        kind: Kind = "async" if name == "async" else "sync"
        with asyncio.Runner() as runner:
            for record in (*manage(place, kind, runner), *infer(place, kind, runner)):
                print(json.dumps(asdict(record)), flush=True)


if __name__ == "__main__":
    main()
