"""The calls of a workspace to its own platform models: at once, or queued.

See docs/reference/inference.md#direct-calls and docs/reference/inference.md#asynchronous-requests.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from control.api.endpoints import ENVIRONMENT_PATTERN
from control.api.inference_document.calls import Call, json_of
from control.api.inference_document.fields import DIRECT_FIELDS, SENT_FIELDS, parameter_references, path_parameter
from control.api.inference_document.json_schema import Json
from control.api.inference_document.refusals import CallKind

DIRECT = "Direct calls"
ASYNC = "Asynchronous requests"
SYNC_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_MODEL = path_parameter("model_id", "The id of the platform model.")
_REQUEST = path_parameter("request_id", "The id of the asynchronous request.")
_HEADERS = parameter_references((*SENT_FIELDS, *DIRECT_FIELDS))
_OWN_HEADERS = parameter_references(("x-request-id",))
_WITH_BODY = frozenset(("POST", "PUT", "PATCH"))
_BODY: Json = {
    "application/json": {"schema": {"description": "Any JSON, as the model server takes it."}},
    "application/octet-stream": {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": "Any other body; it goes on with its own label.",
        }
    },
}
_ANSWER: Json = {
    "application/json": {"schema": {"description": "The replica's answer, as it is."}},
    "*/*": {"schema": {"description": "The replica's answer, as it is."}},
}
_ON_THE_HOST = (
    " Where the operator set `TOLLGATE_MODEL_HOST_SUFFIX`, the model's own host serves the path without"
    " `/models/{model_id}`, too."
)


@dataclass(frozen=True, slots=True)
class Place:
    """A way to say which deployment of a model is called."""

    word: str
    path: str
    about: str
    parameters: tuple[Json, ...] = ()


PLACES = (
    Place("production", "production", "of the environment `production`"),
    Place("development", "development", "of the development deployment"),
    Place(
        "environment",
        "environments/{environment_name}",
        "of an environment",
        (path_parameter("environment_name", "The name of the environment.", pattern=ENVIRONMENT_PATTERN),),
    ),
    Place(
        "deployment",
        "deployment/{deployment_id}",
        "by its id",
        (path_parameter("deployment_id", "The id of the deployment."),),
    ),
)


def _calls() -> Iterator[Call]:
    for place in PLACES:
        yield _predict(place)
        yield from (_sync(place, method) for method in SYNC_METHODS)
        yield _wake(place)
        yield _submit(place)
        yield _queue_status(place)
    for prefix, words, more in (("", "", ()), ("/models/{model_id}", "_of_model", (_MODEL,))):
        yield _look_up(prefix, words, more)
        yield _cancel(prefix, words, more)


def _predict(place: Place) -> Call:
    return Call(
        method="POST",
        path=f"/models/{{model_id}}/{place.path}/predict",
        id=f"predict_{place.word}",
        tag=DIRECT,
        kind=CallKind.DIRECT,
        summary=f"Predict with a deployment {place.about}",
        description="The replica gets the body at `POST /predict`, unchanged, and its answer passes, piece by piece."
        f"{_ON_THE_HOST}",
        content=_ANSWER,
        passes_any_success=True,
        parameters=(_MODEL, *place.parameters, *_HEADERS),
        body=_BODY,
    )


def _sync(place: Place, method: str) -> Call:
    path = path_parameter("path", "The path at the replica, `/` unescaped: OpenAPI cannot say so. No `..` in it.")
    return Call(
        method=method,
        path=f"/models/{{model_id}}/{place.path}/sync/{{path}}",
        id=f"sync_{method.lower()}_{place.word}",
        tag=DIRECT,
        kind=CallKind.DIRECT,
        summary=f"{method} a path of a deployment {place.about}",
        description=f"Path, query and body go to the replica unchanged, and its answer passes, piece by piece. So an"
        f" OpenAI client's base URL is this path with `v1`.{_ON_THE_HOST}",
        content=_ANSWER,
        passes_any_success=True,
        parameters=(_MODEL, *place.parameters, path, *_HEADERS),
        body=_BODY if method in _WITH_BODY else {},
    )


def _wake(place: Place) -> Call:
    return Call(
        method="POST",
        path=f"/models/{{model_id}}/{place.path}/wake",
        id=f"wake_{place.word}",
        tag=DIRECT,
        kind=CallKind.DIRECT,
        summary=f"Wake a deployment {place.about}",
        description=f"Asks for a deployment that is scaled to zero to be woken. No replica is called.{_ON_THE_HOST}",
        status=202,
        success="The deployment will be woken.",
        content=json_of("WakeAnswerV1", example={}),
        parameters=(_MODEL, *place.parameters, *_OWN_HEADERS),
    )


def _submit(place: Place) -> Call:
    return Call(
        method="POST",
        path=f"/models/{{model_id}}/{place.path}/async_predict",
        id=f"async_predict_{place.word}",
        tag=ASYNC,
        kind=CallKind.SUBMISSION,
        summary=f"Queue a request for a deployment {place.about}",
        description=f"Answers at once; the result goes to the webhook. Every call queues a new request: to send it"
        f" again queues it twice. A body has at most 262144 bytes by default.{_ON_THE_HOST}",
        status=201,
        success="The queue has the request.",
        content=json_of("SubmittedRequestV1", example={"request_id": "areq_01JABCDEFGHJKMNPQRSTVWXYZ0"}),
        parameters=(_MODEL, *place.parameters, *_OWN_HEADERS),
        body=json_of("SubmissionV1", example={"model_input": {"prompt": "Hello"}, "priority": 1}),
    )


def _queue_status(place: Place) -> Call:
    return Call(
        method="GET",
        path=f"/models/{{model_id}}/{place.path}/async_queue_status",
        id=f"async_queue_status_{place.word}",
        tag=ASYNC,
        kind=CallKind.LOOK_UP,
        summary=f"Count the requests of a deployment {place.about}",
        description=f"The requests that wait and run. `HEAD` is answered likewise.{_ON_THE_HOST}",
        content=json_of("QueueStatusV1"),
        parameters=(_MODEL, *place.parameters, *_OWN_HEADERS),
    )


def _look_up(prefix: str, words: str, more: tuple[Json, ...]) -> Call:
    return Call(
        method="GET",
        path=f"{prefix}/async_request/{{request_id}}",
        id=f"get_async_request{words}",
        tag=ASYNC,
        kind=CallKind.LOOK_UP,
        summary="Show an asynchronous request",
        description="Its state, until an hour after its end. `HEAD` is answered likewise.",
        content=json_of("AsyncRequestV1"),
        parameters=(*more, _REQUEST, *_OWN_HEADERS),
    )


def _cancel(prefix: str, words: str, more: tuple[Json, ...]) -> Call:
    return Call(
        method="DELETE",
        path=f"{prefix}/async_request/{{request_id}}",
        id=f"cancel_async_request{words}",
        tag=ASYNC,
        kind=CallKind.LOOK_UP,
        summary="Cancel an asynchronous request",
        description="Cancels a request that has not begun. Always 200: `canceled` says whether it did.",
        content=json_of("CancellationV1"),
        parameters=(*more, _REQUEST, *_OWN_HEADERS),
    )


CALLS = tuple(_calls())
