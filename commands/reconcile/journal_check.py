"""Compares the calls of journals with the events of the database, call by call. Pure.

See docs/reference/reconciling.md#journals.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from commands.errors import JournalError
from commands.records.billing_events import FURTHER_FIGURES, Event, epoch_s

SHIPPED = "shipped"
WAITING = "journal"
REJECTED = "rejected"
OPEN = "open"
_STRENGTH = (OPEN, REJECTED, WAITING, SHIPPED)
"""A call that moved while the journals were read is found twice; the later state counts."""


@dataclass(frozen=True, slots=True)
class JournaledCall:
    """A call as a journal has it. `tokens`: input, output, cached input; None while it is open.

    `details`: the values of an event's details, in their order; none if an older proxy wrote the call.
    """

    key: str
    state: str
    workspace_id: str
    entity: str
    slug: str
    key_prefix: str
    ended_at_s: float
    tokens: tuple[int, ...] | None
    details: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """A line of the report. `what`: the kind of difference; `where`: the call, or day and model."""

    what: str
    where: str
    ours: str
    theirs: str


@dataclass(slots=True)
class JournalCheck:
    """Give it the events of the window, then `missing`, then those that came later; then ask for the differences."""

    calls: Mapping[str, JournaledCall]
    workspace_id: str | None
    start_s: float
    end_s: float
    is_complete: bool = False
    """True if the journals are those of all machines."""
    compared: int = 0
    not_journaled: int = 0
    """Events of the window without a call in the journals: older than what they keep, or of other machines."""
    unknown: list[Event] = field(default_factory=list)
    different: list[Difference] = field(default_factory=list)
    event_keys: set[str] = field(default_factory=set)
    kept_from_s: float = field(init=False)
    """The time from which on journals surely have every call: the end of the oldest committed one that they keep."""

    def __post_init__(self) -> None:
        # An open call has no end yet, and calls that were rejected or wait are kept for longer than the others.
        ends_s = (call.ended_at_s for call in self.calls.values() if call.state == SHIPPED)
        self.kept_from_s = min(ends_s, default=self.end_s)

    def add(self, event: Event, is_late: bool = False) -> None:
        """An event of the database. `is_late`: it came in after the window; it counts only as found."""
        call = self.calls.get(event.key)
        if call is None:
            if not is_late:
                self.not_journaled += 1
                if self.is_complete and epoch_s(event.timestamp) > self.kept_from_s:
                    self.unknown.append(event)
            return
        self.workspace_id = self.workspace_id or call.workspace_id
        self.event_keys.add(event.key)
        self.compared += 1
        ours = _members_of_call(call)
        theirs = _members_of_event(event)
        if call.details and event.details.get("source") is not None:
            ours += call.details
            theirs += tuple(event.details.values())
        if call.tokens is not None and ours != theirs:
            self.different.append(Difference("event differs from journal", event.key, _text(theirs), _text(ours)))

    def missing(self) -> list[JournaledCall]:
        """Calls that ended in the window and were not among the events so far."""
        own = (call for call in self.calls.values() if self.workspace_id in (None, call.workspace_id))
        ended = (call for call in own if call.state != OPEN and self.start_s <= call.ended_at_s < self.end_s)
        return [call for call in ended if call.key not in self.event_keys]

    def differences(self) -> list[Difference]:
        """Return what is wrong. A call that waits in the journal is not: it is shipped in a moment, and counted as
        waiting.

        JournalError if it is unknown which workspace's calls to look for.
        """
        missing = self.missing()
        if missing and self.workspace_id is None:
            raise JournalError(
                "none of the journals' calls is among the events, so it is unknown which of them are this"
                " workspace's. Give its id with --workspace-id (`tollgate workspace list` prints it)"
            )
        names = {SHIPPED: "not in the database", REJECTED: "rejected by control"}
        losses = [call for call in missing if call.state in names]
        return [
            *(Difference(names[call.state], call.key, "-", _text(_members_of_call(call))) for call in losses),
            *self.different,
            *(Difference("not in a journal", one.key, _text(_members_of_event(one)), "-") for one in self.unknown),
        ]

    def counts(self) -> dict[str, int]:
        own = [call for call in self.calls.values() if self.workspace_id in (None, call.workspace_id)]
        return {
            "compared": self.compared,
            "waiting_in_journals": sum(call.state == WAITING for call in self.missing()),
            "open_calls": sum(call.state == OPEN for call in own),
            "events_without_journal": self.not_journaled,
        }


def read_calls(lines: Iterable[Mapping[str, Any]]) -> dict[str, JournaledCall]:
    """Read the lines of `journal dump`, by key. Raises JournalError."""
    calls: dict[str, JournaledCall] = {}
    for line in lines:
        call = _call(line)
        before = calls.get(call.key)
        if before is None or _STRENGTH.index(before.state) < _STRENGTH.index(call.state):
            calls[call.key] = call
    return calls


def _call(line: Mapping[str, Any]) -> JournaledCall:
    try:
        event = line["event"]
        tokens = event.get("tokens")
        return JournaledCall(
            key=event["idempotency_key"],
            state=str(line["kept"]),
            workspace_id=event["workspace_id"],
            entity=event["external_entity_id"],
            slug=event["model_slug"],
            key_prefix=event["api_key_prefix"],
            ended_at_s=event.get("ended_at_ms", 0) / 1000,
            tokens=None if tokens is None else tuple(tokens),
            details=_details(event),
        )
    except (KeyError, TypeError) as error:
        raise JournalError(f"a journal's line lacks {error}: {str(line)[:200]}") from None


def _details(event: Mapping[str, Any]) -> tuple[Any, ...]:
    if event.get("source") is None:
        return ()
    figures = tuple(event.get("details", ()))[: len(FURTHER_FIGURES)]
    zeros = (0,) * (len(FURTHER_FIGURES) - len(figures))
    return (event.get("status"), *figures, *zeros, event.get("service_tier") or None, event["source"])


def _members_of_call(call: JournaledCall) -> tuple[Any, ...]:
    return (call.slug, call.entity, call.key_prefix, *(call.tokens or ()))


def _members_of_event(event: Event) -> tuple[Any, ...]:
    tokens = (event.input_tokens, event.output_tokens, event.cached_input_tokens)
    return (event.slug, event.entity, event.listed.get("apiKeyPrefix"), *tokens)


def _text(members: tuple[Any, ...]) -> str:
    slug, entity, prefix, *tokens = members
    figures = "/".join("-" if figure is None else str(figure) for figure in tokens)
    return f"{slug} {entity} {prefix} {figures}"
