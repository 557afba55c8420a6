"""A document that an identity provider publishes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """The outcome of a GET. `error` is for customers, and empty if the answer is a 2xx and came whole."""

    body: bytes = b""
    error: str = ""
