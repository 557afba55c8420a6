"""Calls functions of `truss` and runs its commands, and records what became of each."""

import inspect
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from truss.remote.baseten.error import ApiError

from tests.clients.original.recording import MAX_TEXT, NO_ROUTE, Record, methods_of
from tests.clients.original.truss_client.expected import NO_QUESTION
from tests.clients.original.truss_client.families import COMMANDS, FUNCTIONS, family_of

FUNCTION = "function"
COMMAND = "command"
COMMAND_TIMEOUT_S = 90
TOLD = re.compile(rf"^Client error: (.+)$|({NO_QUESTION}.+)$", re.MULTILINE)
"""The lines that `truss` prints of a 4xx, and of a GraphQL question that is not answered."""


class Nothing(str):
    """An argument that says nothing, whatever a function does with it."""

    def __getattr__(self, name: str) -> "Nothing":
        if name.startswith("_"):
            raise AttributeError(name)
        return Nothing("nothing")

    def json(self) -> str:
        return "{}"

    def to_dict(self) -> dict[str, str]:
        return {}


@dataclass
class Recorder:
    """The remote client and the executable of `truss`, and what they did."""

    api: Any
    executable: Path
    records: list[Record] = field(default_factory=list)

    def call(self, label: str, check: Callable[[Any], Any], *arguments: Any, **options: Any) -> Any:
        """Call the client's `function` or `function, case`. Record whether the answer is true; return it, or None."""
        function = getattr(self.api, label.partition(", ")[0])
        return self.judge(label, lambda: function(*arguments, **options), check)

    def judge(self, label: str, ask: Callable[[], Any], check: Callable[[Any], Any]) -> Any:
        """Record what became of a function. Return its answer, or None for an error."""
        answer: Any = None
        try:
            answer = ask()
            truth = check(answer)
            self._record(FUNCTION, label, "works" if truth else "fails", "" if truth else f"not true: {answer!r}")
        except Exception as error:  # noqa: BLE001 - whatever truss or a check raises is the result
            status, text = told_by(error)
            self._record(FUNCTION, label, refused_or_fails(status, text), text, status)
        return answer

    def run(self, label: str, check: Callable[[str], Any], *options: str) -> str:
        """Run `truss command` with options. Record whether its output is true; return the output."""
        words = label.partition(", ")[0].split()
        process = subprocess.run(
            [str(self.executable), *words, *options],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        output = process.stdout + process.stderr
        refusals = [one or other for one, other in TOLD.findall(output)]
        if process.returncode or refusals:
            text = refusals[0] if refusals else _last_line(output)
            self._record(COMMAND, label, "refused" if refusals and not text.startswith(NO_ROUTE) else "fails", text)
            return process.stdout
        try:
            truth = check(process.stdout)
        except Exception as error:  # noqa: BLE001 - a check that cannot read the output has its result
            truth = None
            output = f"{type(error).__name__}: {error}: {output}"
        self._record(COMMAND, label, "works" if truth else "fails", "" if truth else f"not true: {output}")
        return process.stdout

    def close(self, commands: Iterable[str], cause: str) -> None:
        """Record what no step has called: what is not ours, and what nobody exercises."""
        called = {(record.api, record.method) for record in self.records}
        for name in methods_of(type(self.api)):
            family = family_of(FUNCTIONS, name)
            if family is not None:
                self._see_that_it_is_absent(name)
            elif (FUNCTION, name) not in called:
                self._record(FUNCTION, name, "fails", cause or "neither exercised nor listed as not ours")
        for name in commands:
            if family_of(COMMANDS, name) is not None:
                self._record(COMMAND, name, "not ours", "")
            elif (COMMAND, name) not in called:
                self._record(COMMAND, name, "fails", cause or "neither exercised nor listed as not ours")

    def _see_that_it_is_absent(self, name: str) -> None:
        function = getattr(self.api, name)
        parameters = inspect.signature(function).parameters.values()
        required = [one.name for one in parameters if one.default is inspect.Parameter.empty]
        try:
            function(**{name: [] if name == "dependencies" else Nothing("nothing") for name in required})
            self._record(FUNCTION, name, "fails", "answers, and is listed as not ours: exercise it")
        except Exception as error:  # noqa: BLE001 - whatever truss raises is the result
            status, text = told_by(error)
            absent = text.startswith((*NO_ROUTE, NO_QUESTION))
            self._record(FUNCTION, name, "not ours" if absent else "fails", text, status)

    def _record(self, kind: str, label: str, outcome: str, text: str, status: int | None = None) -> None:
        name, _, case = label.partition(", ")
        self.records.append(Record(kind, name, case, "truss", outcome, status, text[:MAX_TEXT]))


def told_by(error: Exception) -> tuple[int | None, str]:
    """The status and the message of an error that `truss` raises; of another one None, its class and text."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        try:
            return error.response.status_code, str(error.response.json()["message"])
        except (ValueError, KeyError):
            return error.response.status_code, error.response.text
    if isinstance(error, ApiError):
        return 200, error.message
    return None, f"{type(error).__name__}: {error}"


def refused_or_fails(status: int | None, text: str) -> str:
    is_refusal = text.startswith(NO_QUESTION) or (status is not None and 400 <= status < 500)
    return "refused" if is_refusal and not text.startswith(NO_ROUTE) else "fails"


def _last_line(output: str) -> str:
    """The last line that says something."""
    lines = [line.strip(" │╭╰─╮╯") for line in output.splitlines()]
    return next((line for line in reversed(lines) if line), "")
