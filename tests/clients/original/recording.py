"""Calls the SDK's methods by either kind of its client, and records what became of each call."""

import asyncio
import inspect
import json
import time
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pydantic

from tests.clients.original.families import family_of
from tests.clients.original.place import TOO_MANY, WINDOW_S

Kind = Literal["sync", "async"]
Check = Callable[[Any], Any]
NO_ROUTE = ("no such path", "this path takes only", "There is nothing at this path")
"""The first words of an answer of either plane that serves nothing there."""
MAX_TEXT = 300


@dataclass
class Record:
    """The outcome of a method's call. `case`: how this call differs from the plain one."""

    api: str
    method: str
    case: str
    client: str
    outcome: str
    status: int | None = None
    text: str = ""


@dataclass
class Recorder:
    """One generated API of the SDK, and what its methods did. The steps are written once for both kinds of client."""

    name: str
    kind: Kind
    api: Any
    runner: asyncio.Runner
    records: list[Record] = field(default_factory=list)

    def call(self, label: str, check: Check, **arguments: Any) -> Any:
        """Call `method` or `method, case`. Record whether the answer is true; return it, or None for an error."""
        method, _, case = label.partition(", ")
        status: int | None = None
        answer: Any = None
        try:
            answer = self.ask(method, **arguments)
            truth = check(answer)
            outcome = "works" if truth else "fails"
            text = "" if truth else f"the answer is not true: {answer!r}"
        except pydantic.ValidationError as error:
            outcome = "model"
            text = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['type']}" for one in error.errors())
        except Exception as error:  # noqa: BLE001 - whatever the SDK or a check raises is the result
            status = getattr(error, "status_code", None)
            text = text_of(error)
            is_refusal = status is not None and 400 <= status < 500
            outcome = "refused" if is_refusal and not text.startswith(NO_ROUTE) else "fails"
        self._record(method, case, outcome, (status, text))
        return answer

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method by the client's kind, later if the key has made its hundred requests of the second."""
        while True:
            try:
                answer = getattr(self.api, method)(**arguments)
                return self.runner.run(answer) if inspect.iscoroutine(answer) else answer
            except Exception as error:
                if getattr(error, "status_code", None) != TOO_MANY:
                    raise
                time.sleep(WINDOW_S)

    def close(self, cause: str) -> None:
        """Record the methods that no step has called: those that are not ours, and those that nobody exercises."""
        called = {record.method for record in self.records}
        for method in methods_of(type(self.api)):
            family = family_of(method)
            if family is not None and method in called:
                self._record(method, "", "fails", (None, f"exercised, and listed as {family}"))
            elif family is not None:
                self._see_that_it_is_absent(method, family)
            elif method not in called:
                self._record(method, "", "fails", (None, cause or "neither exercised nor listed as not ours"))

    def _see_that_it_is_absent(self, method: str, family: str) -> None:
        try:
            self.ask(method, **anything_for(getattr(type(self.api), method)))
            self._record(method, "", "fails", (None, f"answers, and is listed as {family}: exercise it"))
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises is the result
            text = text_of(error)
            outcome = "not ours" if text.startswith(NO_ROUTE) else "fails"
            self._record(method, "", outcome, (getattr(error, "status_code", None), text))

    def _record(self, method: str, case: str, outcome: str, cause: tuple[int | None, str]) -> None:
        status, text = cause
        self.records.append(Record(self.name, method, case, self.kind, outcome, status, text[:MAX_TEXT]))


def text_of(error: Exception) -> str:
    """The message in an error's answer; of an error without one, its class and text."""
    reply = getattr(error, "error_response", None)
    if reply is not None:
        return str(reply.error or "")
    try:
        answer = json.loads(getattr(error, "body", ""))
    except ValueError:
        return f"{type(error).__name__}: {error}"
    return str(answer.get("message") or answer.get("error") or "") if isinstance(answer, dict) else str(answer)


def methods_of(api: type) -> list[str]:
    """The public methods of a generated API."""
    return [name for name, _ in inspect.getmembers(api, inspect.isfunction) if not name.startswith("_")]


def anything_for(function: Callable[..., Any]) -> dict[str, Any]:
    """Arguments of the right types that say nothing, for a call that nobody serves."""
    hints = typing.get_type_hints(function)
    required = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.default is inspect.Parameter.empty
    ]
    return {name: _nothing(hints[name]) for name in required}


def _nothing(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, pydantic.RootModel):
        return hint({})
    if isinstance(hint, type) and issubclass(hint, pydantic.BaseModel):
        return hint.model_construct()
    return "nothing" if hint is str else None
