"""Runs one client's cases as told on standard input. Uses the standard library only: it runs in every environment.

The first line out lists the cases. Then a line in, `{"case", "base_url", "api_key", "model"}`, gives a line out:
`{"result"}` or `{"error": {"class", "status", "text", "body"}}`.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGP8z8DAwMDAxMDAwMDAAAANHQEDasKb6QAAAABJRU5ErkJggg=="
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The city's name"}},
    "required": ["city"],
    "additionalProperties": False,
}
DESCRIPTION = "Get the weather of a city."
DEGREES = "21 degrees"
STOP = "END"
VOLATILE = {
    *("id", "created", "created_at", "completed_at", "system_fingerprint", "service_tier", "item_id", "call_id"),
    *(
        "request_id",
        "background",
        "store",
        "reasoning_details",
        "logprobs",
        "sequence_number",
        "tool_use_id",
        "tool_call_id",
        "response_id",
    ),
}
"""Members that differ between two calls, that tell of the vendor's machinery, or that Tollgate adds."""
OPAQUE = {"encrypted_content", "signature", "data"}
"""Members that only their vendor can read."""


class Target(NamedTuple):
    """`base_url` without `/v1`. The same model in every call of a client: its slug."""

    base_url: str
    api_key: str
    model: str
    turn: str
    """Unlike in any other run, so that a failure once is a failure once."""

    @property
    def v1(self) -> str:
        return self.base_url + "/v1"


Case = Callable[[Target], Any]


def says(scenario: str, text: str = "What is the weather?") -> str:
    """A user's text that makes the scripted vendor play a scenario."""
    return f"[[scenario:{scenario}]] {text}"


def bare(value: Any) -> Any:
    """A parsed object as JSON without what may differ. Absent, null, zero and empty count alike."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", warnings=False)
    if isinstance(value, str) and value[:1] in ("{", "["):
        return parsed(value)
    if isinstance(value, dict):
        plain = {name: "opaque" if item and name in OPAQUE else item for name, item in value.items()}
        members = {name: bare(item) for name, item in plain.items() if name not in VOLATILE}
        return {name: item for name, item in members.items() if item or item is False}
    if isinstance(value, list | tuple):
        return [bare(item) for item in value]
    return value


def parsed(text: str) -> Any:
    """JSON within a text, as the arguments of a tool call are, parsed: its spaces do not count."""
    try:
        return {"json": json.loads(text)}
    except ValueError:
        return text


def runs(kinds: Iterable[Any]) -> list[Any]:
    """A sequence with equal neighbours merged: what a stream says, however it is cut."""
    return [kind for kind, _ in groupby(kinds)]


def error_of(error: BaseException) -> dict[str, Any]:
    """The class that the caller's code sees, the status, and the text."""
    cause: BaseException | None = error
    while cause is not None and getattr(cause, "status_code", None) is None:
        cause = cause.__cause__ or cause.__context__
    kind = type(error)
    return {
        "class": f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}",
        "status": getattr(cause, "status_code", None),
        "text": str(error),
        "body": json.dumps(getattr(cause, "body", None), default=str),
    }


def serve(cases: Mapping[str, Case]) -> None:
    """Answer the lines on standard input until it ends. Standard output is for nothing else."""
    out = sys.stdout
    sys.stdout = sys.stderr
    print(json.dumps({"cases": list(cases)}), file=out, flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        case = cases[ask.pop("case")]
        print(json.dumps(_outcome(case, Target(**ask)), default=str), file=out, flush=True)


def _outcome(case: Case, target: Target) -> dict[str, Any]:
    try:
        return {"result": case(target)}
    except Exception as error:  # noqa: BLE001 - whatever a client raises is what is compared
        traceback.print_exc()
        return {"error": error_of(error)}
