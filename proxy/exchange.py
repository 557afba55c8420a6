"""The request's context, which the stages fill, and the values that prove that a stage ran.

`authenticate` returns the `Identified`, `admit` the `Admitted`, `dispatch` the `Answering`, `relay` the `Answered`.
Only `admit` constructs `Admitted`, and `dispatch` accepts nothing else, so no call goes upstream unmetered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policy.limits.settlement import Estimate
from proxy.accounting.cost_bounds.cost_bound import CostBound
from proxy.accounting.journaled_call import JournaledCall
from proxy.accounting.metering import AnswerReader, Bill, DeliveredCounter
from proxy.accounting.reservations import Taken
from proxy.accounting.spend_taken import SpendTaken
from proxy.answers import EndCause
from proxy.capacity.call_load import Load
from proxy.dialects.dialect_attempt import DialectAttempt
from proxy.directory_values import Forwarding, Identified, Shape, SlugRoute
from proxy.json_text.large_json import Outline
from proxy.records.head_facts import HeadFacts
from proxy.records.messages import Form, Incoming, Outgoing, UpstreamAnswer
from proxy.replicas.direct_call import DirectCall
from proxy.replicas.replica_calls import ReplicaCall


@dataclass(slots=True)
class Admitted:
    """A call that every limit up the group tree admitted. Made by `stages/admit.py` only; settled exactly once."""

    identified: Identified
    route: SlugRoute
    take: Taken
    event_key: str
    """The billing event's idempotency key, a ULID."""
    estimate: Estimate
    """Tokens that the call reserves of TOKEN limits. Never billed."""
    spend: SpendTaken | None = None
    """The amount that the call reserves of spend limits and its balance. None if neither binds."""


@dataclass(slots=True)
class Answering:
    """The head of the upstream's response has arrived; its body has not."""

    admitted: Admitted
    upstream: UpstreamAnswer
    credential: str | None
    """The target's credential. Never passed on in a response."""
    url: str
    """The URL of the request. Its host is never passed on either."""


@dataclass(slots=True, eq=False, repr=False)
class RequestContext:
    """One request, and what happened to it so far. `settle` reads it, however the request ended.

    Fields without a default are unset until their stage has run: to read one before raises `AttributeError`.
    """

    incoming: Incoming
    outgoing: Outgoing
    facts: HeadFacts
    """Conclusions from the request's head alone."""
    request_id: str
    load: Load | None = None
    """The request's share of the worker's capacity."""
    identified: Identified | None = None
    body: bytes = field(init=False)
    """The body. `receive` sets it and the next seven: see `Received`."""
    json: dict[str, Any] = field(init=False)
    slug: str = field(init=False)
    streaming: bool = field(init=False)
    outline: Outline | None = field(init=False)
    output_cap: int | None = field(init=False)
    """The largest of the caller's output caps: `max_tokens: 1` beside a larger cap must not win (litellm#34223)."""
    answers: int = field(init=False)
    """Number of answers that the call may generate, each up to the cap."""
    metadata: Mapping[str, Any] | None = field(init=False)
    """The billing event's `requestMetadata`."""
    upload: Form | None = None
    """Set if the body is sent while it arrives."""
    granted_cap: int | None = None
    """The output cap that a spend limit or balance granted, which the target is sent; None if it is the caller's."""
    cost_bound: CostBound = field(init=False)
    """Set by `admit` where a HARD spend limit or a balance binds, but for counts of tokens."""
    route: SlugRoute | None = None
    attempt: DialectAttempt = field(init=False)
    """Dialect and form for the target. Dispatch replaces them where the target does not speak that dialect."""
    shape: Shape | None = None
    """None unless a call with this head and slug was sent before."""
    forwarding: Forwarding | None = field(init=False)
    """None unless a call like this was sent before, by whomever."""
    notice: str = ""
    """The attempt's `notice`."""
    admitted: Admitted | None = None
    upstream: UpstreamAnswer | None = None
    """An answer whose head has arrived without all of its body: to be closed in the end."""
    direct: DirectCall | None = None
    """Set if this is a direct call, once its model was found."""
    replica_call: ReplicaCall | None = None
    rate_limit_lines: str = ""
    """The `x-ratelimit-*` fields, encoded."""
    journaled: JournaledCall | None = None
    """Set once the journal has, or is about to write, the call's open record."""
    dispatched: bool = False
    """A byte of the request was written upstream, so it counts as a request. So does a token count answered here."""
    ended: bool = False
    """The call was journaled as ended, and settled."""
    billed: Bill | None = None
    """Set when the call has ended, if it was journaled: what its event says."""
    reported: Bill | None = None
    """Usage that the provider reported with an answer that came whole. For other answers, `reader` has it."""
    reader: AnswerReader | None = None
    delivered: DeliveredCounter | None = None
    answered: bool = False
    """Part of an answer, not of an error, reached the caller or is about to."""
    status: int = 0
    """The status for metrics and logs. May be 499 or 504 although the head said 200."""
    end_cause: EndCause | None = None
    upstream_s: float = 0.0
    """Time spent waiting for the upstream."""
    first_byte_s: float | None = None
    request_bytes: int = 0

    @property
    def workspace_id(self) -> str:
        assert self.identified is not None  # nothing is asked for it before
        return self.identified.key.workspace_id

    def use_attempt(self, attempt: DialectAttempt) -> None:
        """Put the call to its target by this attempt from now on."""
        self.attempt = attempt
        self.notice = attempt.notice
