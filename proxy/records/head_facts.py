"""Conclusions from a request's head alone. Heads repeat, so a cached head keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from policy.credentials import MODEL_CALLERS, SLUG_CALLERS, KeyKind


class Purpose(Enum):
    """The purpose of a path, with the kinds of key that may use it."""

    INFER = "infer", SLUG_CALLERS
    COUNT = "count", SLUG_CALLERS
    """Count the tokens of a request to come: takes and costs none."""
    LIST = "list", SLUG_CALLERS
    INVOKE = "invoke", MODEL_CALLERS
    UNKNOWN = "unknown", tuple(KeyKind)

    def __init__(self, _name: str, users: tuple[KeyKind, ...]) -> None:
        """`_name` keeps members with the same users distinct."""
        self.users = users


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """Facts about the body of an inference call that its valid head states."""

    is_form: bool
    metadata: Mapping[str, Any] | None


@dataclass(slots=True, eq=False)
class HeadFacts:
    """Conclusions from a request's head alone, the same for each sender and time. Cached with the head, if that is."""

    request_id: str | None
    """The caller's own, if it is valid."""
    path: str
    purpose: Purpose
    cors_lines: str
    host_model: str | None
    repeats: bool = False
    """`Incoming.repeats`."""
    is_look: bool = False
    """A page of the console shows what this call answers. No figure of calls counts it."""
    answers_request_id: bool = False
    """SDKs of this path read `request-id` from each response, beside `x-request-id`."""
    digests: tuple[str, ...] | None = None
    """Digests of the credentials. None: not computed yet."""
    forwarded: tuple[object, ...] | None = None
    """`headers.forwarded_values`; None: not computed yet."""
    body: BodyFacts | None = None
    """None: not checked yet."""

    def with_other_credential(self, *, repeats: bool) -> "HeadFacts":
        """The facts of a head that differs from this one only in its credential."""
        return HeadFacts(
            self.request_id,
            self.path,
            self.purpose,
            self.cors_lines,
            self.host_model,
            repeats,
            self.is_look,
            self.answers_request_id,
            forwarded=self.forwarded,
            body=self.body,
        )
