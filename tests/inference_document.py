"""Holds real answers of the data plane against the inference document: status, header fields, label, body, events.

`PathRig.serve` does so for each answer of each unit test, `tests/contracts/http/` and journeys over real sockets.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no annotations

from control.api.inference_document.document import describe_inference
from control.api.inference_document.refusals import FLAT

Json = dict[str, Any]
HTTP_FIELDS = frozenset(("content-type", "content-length", "transfer-encoding", "connection", "date"))
"""Fields of every HTTP message, which OpenAPI does not describe."""
REFUSALS = frozenset((400, 401, 402, 403, 404, 405, 502, 503, 529))
"""Statuses of answers where the document has no operation."""
_WITH_SLASHES = frozenset(("path", "slug"))


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request. `target`: path and query. `passes`: it may be a server's own, unchanged."""

    method: str
    target: str
    status: int
    fields: Iterable[tuple[str, str]]
    body: bytes
    passes: bool = False


@dataclass
class InferenceDocument:
    """The document, and what is wrong with an answer by it."""

    document: Json = field(default_factory=lambda: describe_inference(None))
    _validators: dict[tuple[str, bool], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._patterns = [(_pattern(path), path) for path in self.document["paths"]]

    def check(self, answer: Answer) -> None:
        problems = list(self.problems(answer))
        assert not problems, (problems, answer)

    def check_passed(self, answer: Answer) -> None:
        """Assert the same of an odd server's answer: its label passes, and an array around its answer."""
        problems = [problem for problem in self.problems(answer) if not problem.startswith(("label ", "$: ["))]
        assert not problems, (problems, answer)

    def problems(self, answer: Answer) -> Iterator[str]:
        """Yield the differences between the answer and the document.

        A server that leaves members out, or sends no strict JSON, has its answer passed on as it is.
        """
        if answer.method == "OPTIONS" and answer.status == 204:
            return  # a preflight request of a browser
        fields = [(name.lower(), value) for name, value in answer.fields]
        operation = self.operation(answer.method, answer.target)
        if operation is None:
            yield from self._of_refusal(answer)
            return
        responses = operation["responses"]
        response = responses.get(str(answer.status)) or responses.get(f"{answer.status // 100}XX")
        if response is None:
            yield f"{operation['operationId']} has no status {answer.status}"
            return
        response = self._resolved(response)
        yield from self._of_fields(response.get("headers", {}), fields)
        if answer.method != "HEAD" and "content" in response:
            yield from self._of_body(response["content"], dict(fields), answer)

    def operation(self, method: str, target: str) -> Json | None:
        """The operation of a request; None if the document has none. HEAD is GET's where it has none of its own."""
        methods = self.document["paths"].get(self.path_of(target), {})
        operation: Json | None = methods.get(method.lower())
        return methods.get("get") if operation is None and method == "HEAD" else operation

    def path_of(self, target: str) -> str | None:
        path = target.partition("?")[0]
        return next((name for pattern, name in self._patterns if pattern.fullmatch(path)), None)

    def json_problems(self, schema: Json, text: bytes, passes: bool = False) -> Iterator[str]:
        try:
            value = json.loads(text, parse_constant=_refuse)
        except ValueError as problem:
            if not passes:
                yield f"no JSON: {problem}"
            return
        for error in self._validator(schema, passes).iter_errors(value):
            yield f"{error.json_path}: {error.message[:300]}"

    def _of_refusal(self, answer: Answer) -> Iterator[str]:
        if answer.status not in REFUSALS:
            yield f"no operation for {answer.method} {answer.target}, which is answered {answer.status}"
        elif answer.method != "HEAD":
            yield from self.json_problems({"$ref": f"#/components/schemas/{FLAT}"}, answer.body)

    def _of_body(self, content: Json, fields: dict[str, str], answer: Answer) -> Iterator[str]:
        label = fields.get("content-type", "")
        kind = label.partition(";")[0].strip().lower()
        names = (kind, f"{kind.partition('/')[0]}/*", "*/*")
        media = next((content[name] for name in names if name in content), None)
        if media is None:
            yield f"label {label!r}"
        elif "contentSchema" in media["schema"]:
            for data in event_data(answer.body):
                if data != "[DONE]":
                    yield from self.json_problems(media["schema"]["contentSchema"], data.encode(), answer.passes)
        elif kind == "application/json" and "content-encoding" not in fields:
            yield from self.json_problems(media["schema"], answer.body, answer.passes)

    def _of_fields(self, documented: Json, fields: list[tuple[str, str]]) -> Iterator[str]:
        headers = {name: self._resolved(header) for name, header in documented.items()}
        names = {name for name, _ in fields}
        yield from (
            f"{name} is missing" for name, header in headers.items() if header["required"] and name not in names
        )
        for name, value in fields:
            if name not in headers:
                if name not in HTTP_FIELDS:
                    yield f"{name} is not documented"
            elif headers[name]["schema"]["type"] == "integer" and not value.isdigit():
                yield f"{name}: {value!r} is no integer"

    def _resolved(self, node: Json) -> Json:
        if "$ref" not in node:
            return node
        _, _, kind, name = node["$ref"].split("/")
        resolved: Json = self.document["components"][kind][name]
        return resolved

    def _validator(self, schema: Json, passes: bool) -> Any:
        key = (json.dumps(schema), passes)
        if key not in self._validators:
            whole = schema | {"components": {"schemas": self.document["components"]["schemas"]}}
            self._validators[key] = Draft202012Validator(_without_required(whole) if passes else whole)
        return self._validators[key]


@cache
def inference_document() -> InferenceDocument:
    return InferenceDocument()


def event_data(body: bytes) -> Iterator[str]:
    """The data of each whole event of a stream, as clients read it."""
    text = body.decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    *frames, _ = text.split("\n\n")
    for frame in frames:
        data = "\n".join(line[5:].removeprefix(" ") for line in frame.split("\n") if line.startswith("data:"))
        if data.strip():
            yield data.strip()


def _without_required(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_required(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        name: _without_required(value)
        for name, value in node.items()
        if name != "required" or not isinstance(value, list)
    }


def _pattern(path: str) -> re.Pattern[str]:
    def segment(match: re.Match[str]) -> str:
        return ".+" if match[1] in _WITH_SLASHES else "[^/]+"

    return re.compile(re.sub(r"\\{(\w+)\\}", segment, re.escape(path)))


def _refuse(constant: str) -> None:
    raise ValueError(constant)
