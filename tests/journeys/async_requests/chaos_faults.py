"""Compares what callers, replicas and the webhook's receiver saw of every request. No I/O; each fault is one sentence.

Redis may lose the writes of its last second when it dies, and gets them again from those who made them. Until then a
request may show an older status, and an attempt may begin once more: `lossy` are those times. While a worker is stopped
for longer than its lease, its attempt and the next one may run at once: `stopped` are those times.

See docs/reference/inference.md#asynchronous-requests.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.journeys.async_requests.chaos_replica import GOOD, answer_of

QUEUED = "QUEUED"
IN_PROGRESS = "IN_PROGRESS"
FINAL = frozenset(("SUCCEEDED", "FAILED", "EXPIRED", "CANCELED", "WEBHOOK_FAILED"))
MISSING = "404"
"""Stands for a status: the request is not known."""
RANK = {MISSING: -1, QUEUED: 0, IN_PROGRESS: 1} | dict.fromkeys(FINAL, 2)
AT_ONCE_S = 0.5
"""Two replicas' notes of one hand-over may be this far apart."""

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer about a request's status."""

    at: float
    status: str
    errors: tuple[str, ...] = ()
    """The codes."""


@dataclass(slots=True)
class Request:
    """A caller's request, and the answers to it."""

    model_input: Mapping[str, Any]
    """The `model_input`."""
    max_attempts: int
    webhook: bool
    asked_at: float = 0.0
    answered: int = 0
    """The status of the answer to `async_predict`; 0 if none came."""
    id: str = ""
    canceled: bool | None = None
    """The answer to the cancel; None without a cancel, or without its answer."""
    states: list[Seen] = field(default_factory=list)

    @property
    def n(self) -> int:
        return int(self.model_input["n"])

    @property
    def accepted(self) -> bool:
        return self.answered == 201

    @property
    def final(self) -> str:
        return self.states[-1].status if self.states and self.states[-1].status in FINAL else ""


@dataclass(slots=True)
class AttemptSeen:
    """One attempt as a replica saw it. `how`: as it answered; "left" if the gateway left; "died" if the replica did."""

    id: str
    attempt: int
    began: float
    ended: float = float("inf")
    how: str = ""
    n: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """One message of the webhook."""

    id: str
    body: Mapping[str, Any]
    accepted: bool
    signed: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was seen in one run. Times are in seconds since 1970."""

    requests: Sequence[Request]
    attempts: Sequence[AttemptSeen]
    messages: Sequence[Told]
    lossy: Sequence[Span] = ()
    stopped: Sequence[Span] = ()
    killed: Sequence[float] = ()
    """Times at which a process that runs attempts was killed."""
    replicas_killed: Sequence[float] = ()


def faults_of(evidence: Evidence) -> list[str]:
    """All faults."""
    attempts: dict[str, list[AttemptSeen]] = defaultdict(list)
    for one in sorted(evidence.attempts, key=lambda one: one.began):
        attempts[one.id].append(one)
    messages_of: dict[str, list[Told]] = defaultdict(list)
    for message in evidence.messages:
        messages_of[message.id].append(message)
    faults = [
        f"{request.id or request.n}: {fault} ({_story(request, attempts[request.id], messages_of[request.id])})"
        for request in evidence.requests
        for fault in _of_request(request, attempts[request.id], messages_of[request.id], evidence)
    ]
    refused_numbers = {request.n for request in evidence.requests if 400 <= request.answered < 503}
    faults += [f"{one.id}: ran, though {one.n} was refused" for one in evidence.attempts if one.n in refused_numbers]
    return faults


def _of_request(
    request: Request, attempts: list[AttemptSeen], messages: list[Told], evidence: Evidence
) -> Iterator[str]:
    if not request.accepted:
        return
    yield from _of_statuses(request, evidence)
    yield from _of_attempts(request, attempts, evidence)
    if not request.final:
        yield "accepted, and never ended"
        return
    yield from _of_end(request, attempts, evidence)
    yield from _of_messages(request, attempts, messages)


def _of_statuses(request: Request, evidence: Evidence) -> Iterator[str]:
    for before, after in pairwise(request.states):
        if before.status in FINAL and after.status in FINAL and before.status != after.status:
            yield f"ended twice: {before.status}, then {after.status}"
        elif RANK[after.status] < RANK[before.status] and not _touches(before.at, after.at, evidence.lossy):
            yield f"went from {before.status} to {after.status}"
    if any(one.status == MISSING and not _touches(one.at, one.at, evidence.lossy) for one in request.states):
        yield "accepted, and not known later"
    if request.canceled and request.final != "CANCELED":
        yield f"canceled, and ended {request.final}"
    if request.final == "CANCELED" and request.canceled is False:
        yield "a refused cancel had an effect"


def _of_attempts(request: Request, attempts: list[AttemptSeen], evidence: Evidence) -> Iterator[str]:
    for one in attempts:
        if not 1 <= one.attempt <= request.max_attempts:
            yield f"attempt {one.attempt} of {request.max_attempts}"
    for before, after in pairwise(attempts):
        if _touches(before.began, after.began, evidence.lossy):
            continue
        if after.attempt <= before.attempt:
            yield f"attempt {after.attempt} after {before.attempt}"
        if after.began < before.ended - AT_ONCE_S and not _touches(before.began, after.began, evidence.stopped):
            yield f"attempts {before.attempt} and {after.attempt} ran at once"
    may_be_lost = any(_touches(one.began, one.began, evidence.lossy) for one in attempts)
    if len(attempts) > request.max_attempts and not may_be_lost:
        yield f"{len(attempts)} attempts of {request.max_attempts}"


def _of_end(request: Request, attempts: list[AttemptSeen], evidence: Evidence) -> Iterator[str]:
    codes = request.states[-1].errors
    how = [one.how for one in attempts]
    good = [word for word in how if word in GOOD]
    match request.final:
        case "SUCCEEDED":
            if not good:
                yield "succeeded without a good answer"
            if codes:
                yield f"succeeded with {codes}"
        case "CANCELED":
            if attempts and not any(_touches(one.began, one.began, evidence.lossy) for one in attempts):
                yield "ran, and was canceled"
            if codes:
                yield f"canceled with {codes}"
        case "EXPIRED":
            if attempts and not any(_touches(one.began, one.began, evidence.lossy) for one in attempts):
                yield "ran, and expired"
            if codes not in (("MODEL_NOT_READY",), ("MODEL_UNAVAILABLE",)):
                yield f"expired with {codes}"
        case "FAILED":
            yield from _of_failure(request, codes, attempts, evidence)
        case "WEBHOOK_FAILED":
            yield "its webhook was given up"


def _of_failure(
    request: Request, codes: tuple[str, ...], attempts: list[AttemptSeen], evidence: Evidence
) -> Iterator[str]:
    """Yield a fault if the attempts do not explain the code."""
    how = [one.how for one in attempts]
    if _may_have_died_unseen(request, attempts, evidence):
        how.append("died")
    cause = {
        "MODEL_INVALID_INPUT": ("400", "422"),
        "MODEL_DOES_NOT_EXIST": ("404",),
        "MODEL_PREDICT_ERROR": ("500", "501", "502", "503", "504", "hang up", "cut short", "died"),
        "MODEL_UNAVAILABLE": (),
        "INTERNAL_SERVER_ERROR": (),
    }
    if len(codes) != 1 or codes[0] not in cause:
        yield f"failed with {codes}"
    elif causes := cause[codes[0]]:
        if not any(word in causes for word in how):
            yield f"failed with {codes[0]} after {how}"
    elif codes[0] == "INTERNAL_SERVER_ERROR" and not (evidence.killed or evidence.stopped or evidence.lossy):
        yield "failed with INTERNAL_SERVER_ERROR, and no process was killed"


def _may_have_died_unseen(request: Request, attempts: list[AttemptSeen], evidence: Evidence) -> bool:
    """Return whether the last attempt may have been sent to a replica that was killed before it noted it."""
    ended_at = next(one.at for one in request.states if one.status in FINAL)
    killed = any(request.asked_at <= at <= ended_at for at in evidence.replicas_killed)
    return killed and request.max_attempts not in {one.attempt for one in attempts}


def _of_messages(request: Request, attempts: list[AttemptSeen], messages: list[Told]) -> Iterator[str]:
    if not request.webhook or request.final == "CANCELED":
        if messages:
            yield f"{len(messages)} messages of a request that has none"
        return
    if request.final != "WEBHOOK_FAILED" and not any(message.accepted for message in messages):
        yield "its webhook was not told"
    if not all(message.signed for message in messages):
        yield "an unsigned message"
    contents = [(message.body["data"], message.body["errors"], message.body["request_id"]) for message in messages]
    if any(one != contents[0] for one in contents):
        yield "its messages differ"
    good = [answer_of(dict(request.model_input), one.attempt, one.how) for one in attempts if one.how in GOOD]
    for data, errors, id in contents[:1]:
        codes = tuple(error["code"] for error in errors)
        if id != request.id or codes != request.states[-1].errors:
            yield f"its message says {id}, {codes}; its status {request.states[-1].errors}"
        if request.final == "SUCCEEDED" and data not in good:
            yield "its message has another answer than its replica's"
        if request.final in ("FAILED", "EXPIRED") and data is not None:
            yield "its message has data"


def _touches(began: float, ended: float, spans: Sequence[Span]) -> bool:
    return any(began <= last and first <= ended for first, last in spans)


def _story(request: Request, attempts: list[AttemptSeen], messages: list[Told]) -> str:
    statuses: list[str] = []
    for one in request.states:
        if not statuses or statuses[-1].partition("@")[0] != one.status:
            statuses.append(f"{one.status}@{one.at % 1000:.2f}")
    ran = [f"{one.attempt}:{one.how}@{one.began % 1000:.2f}-{one.ended % 1000:.2f}" for one in attempts]
    model_input = {name: value for name, value in request.model_input.items() if name != "n"}
    cancel = "" if request.canceled is None else f", cancel {request.canceled}"
    codes = request.states[-1].errors if request.states else ()
    bound = f"{request.max_attempts} attempts at most"
    return f"{model_input}, {bound}{cancel}; {statuses} {codes}; ran {ran}; told {len(messages)}"
