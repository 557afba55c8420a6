"""Calls and prices for the tests of bounds. One per million tokens is 10^16 units a token."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson

from policy.prices import Price, TokenPrices, token_prices
from proxy.json_text.large_json import Outline
from proxy.records.head_facts import HeadFacts, Purpose
from proxy.records.messages import Form, Incoming
from tests.proxy.dialects.samples import FakeIncoming

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
A_MILLIONTH = 10**16
ONE = 10**22


@dataclass
class FakeCall:
    """A call as `admit` knows it."""

    incoming: Incoming
    facts: HeadFacts
    body: bytes
    json: dict[str, Any]
    slug: str = "acme/a"
    streaming: bool = False
    outline: Outline | None = None
    upload: Form | None = None
    granted_cap: int | None = None
    output_cap: int | None = None
    answers: int = 1
    workspace_id: str = "ws"


def call(json: dict[str, Any], path: str = CHAT, *, body_bytes: int | None = None, **members: Any) -> FakeCall:
    """A call with this body, or with one of so many bytes."""
    body = orjson.dumps(json) if body_bytes is None else bytes(body_bytes)
    facts = HeadFacts("r", path, Purpose.INFER, "", None)
    return FakeCall(members.pop("incoming", FakeIncoming(())), facts, body, json, **members)


def tokens(input: int | str, output: int | str, **others: int | str) -> TokenPrices:
    kinds = {name: Decimal(amount) for name, amount in others.items()}
    return token_prices(Decimal(input), Decimal(output), **kinds)


def price(input: int | str = 2, output: int | str = 10, *, valid_from_ms: int = 0, **members: Any) -> Price:
    return Price("acme/a", valid_from_ms, members.pop("currency", "EUR"), tokens(input, output), **members)
