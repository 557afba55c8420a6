"""Refusals of scripted vendors, and the checks that several vendors make."""

import base64
import binascii
import json
from typing import Any

from tests.upstream.dialects.scenarios import Json
from tests.upstream.dialects.shapes import mismatches


class RefusedError(Exception):
    """The vendor refuses the request. `param` is the member at fault."""

    def __init__(self, message: str, param: str = "", status: int = 400) -> None:
        super().__init__(f"{param}: {message}" if param else message)
        self.param = param
        self.status = status


def require(condition: bool, message: str, param: str = "") -> None:
    if not condition:
        raise RefusedError(message, param)


def require_shape(body: Json, kind: Any, extensions: frozenset[str]) -> None:
    """Refuse what the SDK's type does not know. `extensions`: names of further members, at any depth."""
    for path, problem in mismatches(body, kind):
        if path.rpartition(".")[2] not in extensions:
            raise RefusedError(problem, path)


def require_closed_objects(schema: Any, param: str, *, all_required: bool) -> None:
    """Refuse a strict schema with an open object. `all_required`: and one with a property that is not required."""
    if isinstance(schema, list):
        for number, item in enumerate(schema):
            require_closed_objects(item, f"{param}.{number}", all_required=all_required)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" or "properties" in schema:
        require(schema.get("additionalProperties") is False, "'additionalProperties' must be false", param)
        if all_required:
            missing = set(schema.get("properties", {})) - set(schema.get("required", ()))
            require(not missing, f"'required' must name every property; it lacks {sorted(missing)}", param)
    for name, value in schema.items():
        if name not in ("enum", "const", "default", "examples", "required"):
            require_closed_objects(value, f"{param}.{name}", all_required=all_required)


def decoded(data: str, param: str) -> bytes:
    """The bytes of base64 data."""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise RefusedError("is not valid base64", param) from error


def decoded_data_url(url: str, param: str) -> tuple[str, bytes]:
    """The media type and the bytes of a `data:` URL."""
    head, comma, data = url.partition(",")
    require(head.startswith("data:") and head.endswith(";base64") and bool(comma), "is not a data URL", param)
    return head.removeprefix("data:").removesuffix(";base64"), decoded(data, param)


def json_object(text: str, param: str) -> Json:
    """The arguments of a tool call. The empty text counts as no arguments."""
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise RefusedError("is not valid JSON", param) from error
    require(isinstance(value, dict), "must be a JSON object", param)
    return dict(value)
