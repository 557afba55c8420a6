"""The parts of an answer to the caller, why a call failed, and facts in the fields of an upstream's answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Headers = Sequence[tuple[str, str]]


class AnswerFields(NamedTuple):
    """Facts in the fields of an upstream's answer."""

    content_type: str
    encoded: bool
    """The body is compressed, so it cannot be read, nor searched for secrets."""
    returned: Headers
    """The fields that go to the caller, without those that the upstream declares hop-by-hop."""
    codings: tuple[str, ...]
    """The transfer codings, in lower case, one for each field."""
    longest: int
    """The length of the longest value in `returned`, in characters."""


@dataclass(slots=True)
class Answered:
    """The response, except for its last bytes: they leave once the call is journaled. A refusal is one, too.

    `status`, `headers` and `reason` matter only if no head was sent before.
    """

    status: int
    headers: Headers
    final: bytes
    reason: str = ""
    """An error's message: some clients show only the status line's reason phrase.

    See docs/reference/inference.md#errors.
    """


@dataclass(frozen=True, slots=True)
class RefusingLimit:
    """The limit that refused a call. `group`: the id of the group that configures it; "" if it is the workspace's own.

    `type`: as metrics name it, so of a spend limit SPEND, of a prepaid balance BALANCE, which has neither unit nor
    threshold. `threshold`: of a spend limit its amount.
    """

    group: str
    type: str
    unit: str
    threshold: str


@dataclass(frozen=True, slots=True)
class EndCause:
    """The cause of a call that was refused or broke off, as the table of refusals names it; the limit that refused it.

    A report goes to the supervisor with it, as JSON.
    """

    name: str
    limit: RefusingLimit | None = None
