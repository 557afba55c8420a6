"""`python -m tests.clients.original.truss_client.log_reader HOW WHERE ID` prints the messages that `truss` reads.

`watch` follows a job as `truss train logs --tail` does. `pages` reads a job from its beginning, again and again, until
it has ended. `deployment` fills a deployment's log in bursts and follows it as `truss model-logs --tail` does. WHERE is
the id of the project or model, ID that of the job or deployment. Prints `{"messages", "readings", "parted"}`: what
all readings together saw, or the last one, and the number of readings, and of those that miss a line between others.
"""

import json
import sys
from typing import Any

import requests
from truss.cli.logs.model_log_watcher import ModelDeploymentLogWatcher
from truss.cli.logs.training_log_watcher import TrainingLogWatcher
from truss.remote.baseten.core import get_training_job_logs_with_pagination
from truss.remote.remote_factory import RemoteFactory

from tests.clients.original.truss_client.scene import ENDED

BURSTS = 2
BURST_LINES = 20_000
LINES_AT_ONCE = 1000
Seen = dict[str, Any]


def watch(api: Any, project: str, job: str) -> Seen:
    lines = TrainingLogWatcher(api, project, job).watch(show_spinner=False)
    return {"messages": [line.message for line in lines], "readings": 1, "parted": 0}


def pages(api: Any, project: str, job: str) -> Seen:
    readings = list[list[str]]()
    has_ended = False
    while not has_ended:
        has_ended = api.get_training_job(project, job)["training_job"]["current_status"] in ENDED
        lines = get_training_job_logs_with_pagination(api, project, job)
        readings.append([line["message"] for line in lines])
    last = readings[-1]
    parted = sum(one != last[: len(one)] for one in readings)
    return {"messages": last, "readings": len(readings), "parted": parted}


def deployment(api: Any, model: str, deployment: str) -> Seen:
    url = f"{api.rest_api_url}/v1/models/{model}/deployments/{deployment}/logs/append"
    (remote,) = RemoteFactory.get_available_config_names()
    headers = {"Authorization": f"Api-Key {RemoteFactory.load_remote_config(remote).configs['api_key']}"}
    watcher = ModelDeploymentLogWatcher(api, model, deployment)
    messages = list[str]()
    for burst in range(BURSTS):
        numbers = range(burst * BURST_LINES, (burst + 1) * BURST_LINES)
        for start in numbers[::LINES_AT_ONCE]:
            body = {"logs": [{"message": f"line {n}"} for n in range(start, start + LINES_AT_ONCE)]}
            requests.post(url, json=body, headers=headers, timeout=60).raise_for_status()
        messages += [line.message for line in watcher.poll()]
    whole = [line["message"] for line in api.get_model_deployment_logs(model, deployment)]
    return {"messages": messages, "readings": BURSTS, "parted": int(whole != messages)}


def main() -> None:
    how, where, id = sys.argv[1:]
    (remote,) = RemoteFactory.get_available_config_names()
    read = {"watch": watch, "pages": pages, "deployment": deployment}[how]
    print("\n" + json.dumps(read(RemoteFactory.create(remote).api, where, id)))


if __name__ == "__main__":
    main()
