"""The OpenAPI 3.1.0 document of the management API, generated from the operations and from the models that validate.

See docs/reference/management-api.md#description.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from control.api.changes.conditions import condition_parameters, tag_header
from control.api.changes.idempotency import HEADER, MAX_CHARS, REPLAYED
from control.api.description.examples import NO_EXAMPLE, Example, examples_by_id
from control.api.description.messages import message_models, webhooks
from control.api.description.names import Names, names_by_route, tags
from control.api.description.portable import portable
from control.api.endpoints import ENVIRONMENT_PATTERN
from control.api.protocol.bodies import MAX_BODY_BYTES, MAX_MEMBERS, MAX_NESTING, MAX_VALUES
from control.api.protocol.docs_page import docs_page
from control.api.protocol.lists import PAGE_BYTES
from control.api.protocol.operations import Operation
from control.api.protocol.schemas import ResponseV1

_REF = "#/components/schemas/{model}"
Json = dict[str, Any]


class LimitConflictV1(ResponseV1):
    """The limit of another group that forbids one of the request. `minimum`, `maximum`: what would be allowed."""

    group_id: str
    external_entity_id: str
    name: str | None
    slug: str | None = Field(description="Null of a spend limit.")
    type: str = Field(description="`SPEND` of a spend limit.")
    unit: str
    threshold: int | str = Field(description="Of a spend limit its amount, as decimal text.")
    currency: str | None
    minimum: int | str | None
    maximum: int | str | None


class ErrorDetailV1(ResponseV1):
    """The fault of one field."""

    field: str
    message: str
    conflict: LimitConflictV1 | None = Field(
        None, exclude_if=lambda value: value is None, description="Present where another group's limit is the reason."
    )


class ErrorV1(ResponseV1):
    """An error response. `details` is present on errors about fields, `retry_after` (seconds) if a repeat will do."""

    error: str
    message: str = Field(description="The same as `error`: the original's clients read `message`.")
    code: str
    details: list[ErrorDetailV1] = Field(default_factory=list, exclude_if=lambda value: not value)
    retry_after: int | None = Field(None, exclude_if=lambda value: value is None)


_ERRORS: dict[int, tuple[str, str, str]] = {
    400: ("The request is malformed or breaks a rule.", "INVALID_REQUEST", "Invalid body: slug: required"),
    401: ("Credentials are missing or malformed.", "UNAUTHORIZED", "Unauthorized"),
    403: (
        "The key is unknown, revoked or federated, lacks management scope, or its workspace may not do this.",
        "NOT_ONBOARDED",
        "The workspace is not onboarded to the gateway",
    ),
    404: ("The resource does not exist in this workspace.", "NOT_FOUND", "group not found"),
    405: ("The path does not support the method; see the Allow header.", "METHOD_NOT_ALLOWED", "Method Not Allowed"),
    409: ("The request conflicts with the current state.", "CONFLICT", "the slug is taken"),
    412: (
        "The resource was changed since the version that `If-Match` names.",
        "PRECONDITION_FAILED",
        "Nothing was changed: it was changed since you read it. GET it again, and repeat the change with its new ETag",
    ),
    413: ("The body is too large.", "REQUEST_ENTITY_TOO_LARGE", "Request Entity Too Large"),
    415: (
        "The body is compressed, or its content type is not application/json.",
        "UNSUPPORTED_MEDIA_TYPE",
        "Content-Type must be application/json",
    ),
    429: (
        "The API key's request limit is exceeded.",
        "RATE_LIMITED",
        "Management API rate limit exceeded for this API key",
    ),
    503: (
        "A component of Tollgate is unavailable; try again.",
        "DATABASE_UNAVAILABLE",
        "The database cannot be reached",
    ),
}
_ID: Json = {"type": "string", "minLength": 1}
_PATH_SCHEMAS: dict[str, Json] = {"environment_name": {"type": "string", "pattern": ENVIRONMENT_PATTERN}}
_ALWAYS = (401, 403, 429, 503)
_IDEMPOTENCY_KEY: Json = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "The same key, path and body within 24 hours get the answer of the first request, "
    f"with `{REPLAYED}: true`.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_CHARS, "pattern": "^[\\x20-\\x7e]+$"},
}


def describe(operations: Sequence[Operation]) -> Json:
    """The complete OpenAPI document."""
    paths: dict[str, Json] = {}
    names_of = names_by_route()
    examples = examples_by_id()
    for operation in operations:
        names = names_of[f"{operation.method} {operation.path}"]
        members = _operation(operation, names, examples.get(names.id, NO_EXAMPLE))
        paths.setdefault(operation.path, {})[operation.method.lower()] = members
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tollgate management API",
            "version": "1.0.0",
            "contact": {"name": "The operator of this installation"},
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
            "description": "Endpoints, groups and limits, keys, secrets, platform models, training, and events. "
            f"A body has at most {MAX_BODY_BYTES} bytes, {MAX_VALUES} values, {MAX_MEMBERS} members in one object and "
            f"{MAX_NESTING} levels. A page of a list ends early above {PAGE_BYTES} bytes, but has at least one item. "
            "Use `has_more` and `cursor`, not the number of items, to tell whether more follow.",
        },
        "servers": [{"url": "/", "description": "The control plane that serves this document."}],
        "security": [{"bearer": []}, {"apiKey": []}],
        "tags": [{"name": tag.name, "description": tag.text} for tag in tags()],
        "paths": paths,
        "webhooks": webhooks(_REF),
        "components": {
            "schemas": _schemas(operations),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "The legacy form: `Api-Key <API_KEY>`.",
                },
            },
        },
    }


class _Description:
    """The document and its page, generated in a thread at the first request: a start need not wait for it."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self._one_at_a_time = asyncio.Lock()
        self._generated: tuple[bytes, bytes] | None = None

    async def generated(self) -> tuple[bytes, bytes]:
        async with self._one_at_a_time:
            if self._generated is None:
                self._generated = await asyncio.to_thread(self._generate)
            return self._generated

    def _generate(self) -> tuple[bytes, bytes]:
        document = describe(self._operations)
        return orjson.dumps(document), docs_page(document).encode()


def description_routes(operations: Sequence[Operation]) -> list[web.RouteDef]:
    """`/v1/openapi.json` and `/docs`. Neither needs credentials or loads anything from other hosts."""
    description = _Description(operations)
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"

    async def openapi(_request: web.Request) -> web.Response:
        text, _ = await description.generated()
        return web.Response(body=text, content_type="application/json")

    async def docs(_request: web.Request) -> web.Response:
        _, page = await description.generated()
        headers = {"Content-Security-Policy": policy}
        return web.Response(body=page, content_type="text/html", charset="utf-8", headers=headers)

    return [web.get("/v1/openapi.json", openapi), web.get("/docs", docs)]


def _operation(operation: Operation, names: Names, example: Example) -> Json:
    parameters = [*_path_parameters(operation.path), *_query_parameters(operation.query), *_headers(operation)]
    members: Json = {
        "operationId": names.id,
        "summary": operation.summary,
        "description": names.text,
        "tags": [names.tag],
        "parameters": [_with_example(one, example) for one in parameters],
        "responses": _responses(operation, example),
    }
    if operation.body is not None:
        members["requestBody"] = {"required": True, "content": _json(operation.body, example.request)}
    return members


def _json(model: type[BaseModel], example: Any) -> Json:
    """A body of this model, with an example unless it is null."""
    body: Json = {"schema": {"$ref": _REF.format(model=model.__name__)}}
    return {"application/json": body if example is None else body | {"example": example}}


def _with_example(parameter: Json, example: Example) -> Json:
    value = example.parameters.get(parameter["name"])
    if value is None:
        return parameter
    return parameter | {"example": int(value) if parameter["schema"].get("type") == "integer" else value}


def _responses(operation: Operation, example: Example) -> Json:
    takes_input = operation.body is not None or operation.query is not None
    statuses = {*operation.errors, *_ALWAYS, *((400,) if takes_input else ()), *((413, 415) if operation.body else ())}
    if operation.is_tagged:  # 400: a header that names no tags
        statuses |= {400} if operation.method in ("GET", "POST") else {400, 412}
    statuses |= {400, 409} if operation.creates else set()
    success: Json = {"200": {"description": "Success.", "content": _json(operation.answer, example.answer)}}
    if operation.is_tagged:
        success["200"] |= tag_header(operation.method)
        if operation.method == "GET":
            success["304"] = {"description": "It is still what `If-None-Match` names."}
    return success | {str(status): _error(status) for status in sorted(statuses)}


def _error(status: int) -> Json:
    description, code, message = _ERRORS[status]
    example: Json = {"error": message, "message": message, "code": code}
    answer: Json = {"description": description}
    if status == 400:
        example["details"] = [{"field": "slug", "message": "required"}]
    if status == 429:
        example["retry_after"] = 1
        answer["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "required": True}}
    return answer | {"content": _json(ErrorV1, example)}


def _headers(operation: Operation) -> list[Json]:
    """The header fields that a request may have; those of credentials are security schemes."""
    conditions = condition_parameters(operation.method) if operation.is_tagged else []
    return [*([_IDEMPOTENCY_KEY] if operation.creates else []), *conditions]


def _path_parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS.get(name, _ID)}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(query: type[BaseModel] | None) -> list[Json]:
    if query is None:
        return []
    schema = query.model_json_schema(ref_template=_REF)
    required = schema.get("required", [])
    return [_query_parameter(name, field, name in required) for name, field in schema["properties"].items()]


def _query_parameter(name: str, field: Json, required: bool) -> Json:
    """Remove null from the schema: a query parameter is present or absent, never null."""
    default = {"default": value} if (value := field.get("default")) is not None else {}
    field = portable({key: value for key, value in field.items() if key != "default"})
    choices = [choice for choice in field.pop("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        field |= choices[0]
    elif choices:
        field["anyOf"] = choices
    description = field.pop("description", "")
    return {"name": name, "in": "query", "required": required, "description": description, "schema": field | default}


def _schemas(operations: Sequence[Operation]) -> Json:
    bodies = {model for operation in operations if (model := operation.body) is not None}
    answered: set[type[BaseModel]] = {operation.answer for operation in operations} | {ErrorV1, *message_models()}
    models: list[Any] = [(model, "validation") for model in sorted(bodies, key=lambda m: m.__name__)]
    models += [(model, "serialization") for model in sorted(answered, key=lambda m: m.__name__)]
    _, document = models_json_schema(models, ref_template=_REF)
    return {name: portable(schema) for name, schema in document["$defs"].items()}
