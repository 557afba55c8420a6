"""Direct calls and asynchronous requests of a model, by the original's SDK."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import baseten.client.inferenceapi as api

from tests.clients.original.place import Model, Place, until
from tests.clients.original.recording import Recorder

ENVIRONMENT = "canary"
"""The environment whose host the regional methods call: the base URL of their client names it."""
USES = ("", "_deployment", "_development", "_production", "_regional")
ENDED = frozenset(("SUCCEEDED", "FAILED", "EXPIRED", "CANCELED", "WEBHOOK_FAILED"))
ENDLESS = "hang"
"""A word of an input that the model server never answers."""


@dataclass
class Scene:
    """A model whose deployment takes one call at a time and is in every environment."""

    place: Place
    model: Model

    @property
    def path(self) -> str:
        return f"/models/{self.model.id}"

    @classmethod
    def create(cls, place: Place, name: str) -> "Scene":
        """Create it, and wait until the proxy knows it and a call is answered."""
        scene = cls(place, place.model(name))
        path = f"{scene.model.path}/deployments/{scene.model.deployment}"
        place.control("PATCH", path, {"max_concurrency": 1})
        for environment in ("production", "development", ENVIRONMENT):
            scene.model.point(environment)
        scene.model.serve()
        for where in ("production", "development", f"environments/{ENVIRONMENT}"):
            url = f"{scene.path}/{where}/async_queue_status"
            until(partial(scene.answers, url), f"the proxy knows {where}")
        place.proxy("POST", f"{scene.path}/production/predict", {})
        return scene

    def answers(self, url: str) -> bool:
        return self.place.proxy.status(url) == 200

    def arguments(self, use: str) -> dict[str, str]:
        """The path's arguments in one of the uses of a method."""
        return {"": {"env_name": ENVIRONMENT}, "_deployment": {"deployment_id": self.model.deployment}}.get(use, {})

    def until_ended(self, request: str) -> None:
        path = f"{self.path}/async_request/{request}"
        until(lambda: self.place.proxy("GET", path)["status"] in ENDED, f"{request} has ended")


def run(sdk: Recorder, regional: Recorder, scene: Scene) -> None:
    """Call each method in each of its uses; `regional` calls the environment's own host."""
    for use in USES:
        client = regional if use == "_regional" else sdk
        where = scene.arguments(use)
        client.call(f"predict{use}", _is_answer, **where, request=api.PredictInput({"n": 1}))
        raw = f"predict{use}_raw" if use else "predict_raw"
        client.call(
            raw,
            partial(_is_stream, client),
            **where,
            request=api.PredictInput({"n": 1}),
            accept="application/json",
        )
        client.call(f"wake{use}", lambda answer: answer is None, **where)
        _queue(client, scene, use)
    _look_and_cancel(sdk, scene)


def _is_answer(answer: Any) -> bool:
    return bool(answer.root["object"] == "chat.completion")


def _is_stream(client: Recorder, answer: Any) -> bool:
    """Read the raw answer's body by the kind of the client."""
    if client.kind == "async":
        client.runner.run(answer.aread())
    else:
        answer.read()
    return bool(answer.json()["object"] == "chat.completion")


def _queue(client: Recorder, scene: Scene, use: str) -> None:
    """Submit a request, read the queue's figures, and see the request succeed."""
    where = scene.arguments(use)
    request = api.AsyncPredictRequest(model_input={"n": 1})

    def succeeds(answer: Any) -> bool:
        scene.until_ended(answer.request_id)
        return bool(scene.place.proxy("GET", f"/async_request/{answer.request_id}")["status"] == "SUCCEEDED")

    client.call(f"async_predict{use}", succeeds, **where, request=request)
    client.call(
        f"get_async_queue_status{use}",
        lambda answer: answer.deployment_id == scene.model.deployment and answer.num_queued_requests == 0,
        **where,
    )


def _look_and_cancel(sdk: Recorder, scene: Scene) -> None:
    """One request runs and keeps the deployment busy; the one behind it is looked at and canceled."""
    request = api.AsyncPredictRequest(model_input={"text": ENDLESS})
    first = sdk.ask("async_predict_production", request=request)
    path = f"{scene.path}/async_request/{first.request_id}"
    until(partial(_runs, scene, path), "the request runs")
    second = sdk.ask("async_predict_production", request=request)
    sdk.call(
        "get_async_request_status",
        lambda state: (state.request_id, state.model_id, state.status) == (second.request_id, scene.model.id, "QUEUED"),
        request_id=second.request_id,
    )
    sdk.call("cancel_async_request", lambda answer: answer.canceled, request_id=second.request_id)
    sdk.call(
        "cancel_async_request, of one that runs",
        lambda answer: not answer.canceled and answer.message,
        request_id=first.request_id,
    )
    sdk.call(
        "get_async_request_status, of a canceled one",
        lambda state: state.status == "CANCELED",
        request_id=second.request_id,
    )


def _runs(scene: Scene, path: str) -> bool:
    return bool(scene.place.proxy("GET", path)["status"] == "IN_PROGRESS")
