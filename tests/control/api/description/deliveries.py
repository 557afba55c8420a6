"""Checks what a receiver got against the section `webhooks` of the OpenAPI document."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from control.api.protocol.openapi import describe
from control.app import OPERATIONS
from tests.control.api.description.schemas import Described

Json = dict[str, Any]


@cache
def _described() -> Described:
    return Described(json.loads(json.dumps(describe(OPERATIONS))))


def check_delivery(name: str, body: Any, headers: Mapping[str, str] | None = None) -> None:
    """Check one delivery of the webhook of this name: its body, and its headers if they are known."""
    operation = _described().document["webhooks"][name]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert _described().violations(schema, body) == [], (name, body)
    if headers is not None:
        names = {header.lower() for header in headers}
        assert {one["name"] for one in operation["parameters"] if one["required"]} <= names, name


def name_of(message: Json) -> str:
    """The webhook that a message of a billing webhook belongs to."""
    return {"API_BILLING_USAGE": "billingUsage", "TEST": "testMessage"}.get(message["type"], "limitAlert")
