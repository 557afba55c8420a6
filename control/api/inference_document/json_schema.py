"""Builders of JSON schemas. Every object lets further members through: what the gateway does not act on, it passes."""

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


def record(description: str, members: Json, required: Sequence[str] = ()) -> Json:
    """An object whose further members are allowed."""
    schema: Json = {"type": "object", "description": description, "properties": members, "additionalProperties": True}
    return schema | ({"required": list(required)} if required else {})


def text(description: str = "", **rules: Any) -> Json:
    return _described({"type": "string", **rules}, description)


def integer(description: str = "", **rules: Any) -> Json:
    return _described({"type": "integer", **rules}, description)


def number(description: str = "", **rules: Any) -> Json:
    return _described({"type": "number", **rules}, description)


def flag(description: str = "") -> Json:
    return _described({"type": "boolean"}, description)


def anything(description: str) -> Json:
    """Any JSON value."""
    return {"description": description}


def list_of(items: Json, description: str = "") -> Json:
    return _described({"type": "array", "items": items}, description)


def reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def or_null(schema: Json) -> Json:
    """The same schema, or null."""
    if "$ref" in schema or schema["type"] == "object":  # a type of its own to generators
        return {"anyOf": [schema, {"type": "null"}]}
    return schema | {"type": [schema["type"], "null"]}


def choice(description: str, *schemas: Json) -> Json:
    return {"description": description, "anyOf": list(schemas)}


def free_object(description: str) -> Json:
    """An object of which nothing is said."""
    return {"type": "object", "description": description, "additionalProperties": True}


def event_stream(description: str, events: str, example: str) -> Json:
    """The media type of a stream. `events`: the schema of each event's data; OpenAPI 3.1 cannot apply it."""
    about = (
        f"{description} Server-sent events: fields on lines of their own, an empty line behind each event. The data"
        f" of an event is JSON of the schema `{events}`. Skip lines that begin with a colon: they are comments, as in"
        f" `: x-tollgate-left-out: choices.0.delta.images`. A failure after the head ends the stream early."
    )
    schema = {
        "type": "string",
        "description": about,
        "contentMediaType": "text/event-stream",
        "contentSchema": reference(events),
    }
    return {"schema": schema, "example": example}


def _described(schema: Json, description: str) -> Json:
    return schema | ({"description": description} if description else {})
