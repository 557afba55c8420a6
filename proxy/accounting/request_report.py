"""The report of a request that has ended, for metrics and the access log."""

from dataclasses import dataclass, field
from typing import Protocol

from policy.billing import NO_DETAILS, Details, Tokens
from policy.snapshot import EndpointRow
from proxy.accounting.metering import Bill
from proxy.accounting.slug_prices import SlugPrices
from proxy.answers import EndCause

MAX_PATH_CHARS = 256


@dataclass(slots=True, eq=False, kw_only=True)
class CallLabels:
    """The caller and the route of a request: the same for all calls of a key to one slug and path. "" is unknown.

    Contains no secrets: only the key's prefix, and nothing about the target.
    """

    method: str
    path: str
    workspace_id: str = ""
    external_entity_id: str = ""
    group_id: str = ""
    key_prefix: str = ""
    slug: str = ""
    model_id: str = ""
    """The model's id in a direct call; then there is no slug."""
    counted: tuple[str, str, str] = field(init=False)
    """The labels of metrics: workspace, external entity, and slug or model."""
    shown_path: str = field(init=False)
    """The path as logs and lists show it: bounded, in printable ASCII."""
    encoded: bytes = field(init=False, default=b"")
    """The members of a log line, as JSON. The access log sets it with the first line."""

    def __post_init__(self) -> None:
        self.counted = (self.workspace_id, self.external_entity_id, self.slug or self.model_id)
        path = self.path[:MAX_PATH_CHARS]
        is_plain = path.isascii() and path.isprintable()
        self.shown_path = path if is_plain else path.encode("unicode_escape").decode()[:MAX_PATH_CHARS]


class CalledRoute(Protocol):
    """The part of a slug's route that metrics read."""

    @property
    def endpoint(self) -> EndpointRow: ...

    @property
    def prices(self) -> SlugPrices | None: ...


@dataclass(slots=True, kw_only=True)
class RequestReport:
    """One ended request, for metrics and access log. What did not become known is "", None or 0.

    Contains no secrets.
    """

    labels: CallLabels
    ended_at_ms: int
    request_id: str
    status: int
    end_cause: EndCause | None
    request_bytes: int
    response_bytes: int
    bill: Bill | None
    """None unless the call was journaled."""
    event_key: str | None
    """The key of the billing event, which has the bill."""
    duration_s: float
    ours_s: float
    """The gateway's share of the duration: without waiting for the upstream or the caller."""
    upstream_s: float
    first_byte_s: float | None
    is_count: bool = False
    """The call counts tokens; it does not cost the price per call."""
    route: CalledRoute | None = field(default=None, repr=False)
    """The slug's endpoint and prices; None in a direct call, and where the slug or the caller is unknown. What is
    billed has one. It names the target, which nothing for callers may."""
    trace_id: str = ""
    """The trace of the server span, in hexadecimal, as the next one."""
    span_id: str = ""

    @property
    def tokens(self) -> Tokens | None:
        """The tokens that are billed."""
        return None if self.bill is None else self.bill.tokens

    @property
    def details(self) -> Details:
        """Further figures that are billed."""
        return NO_DETAILS if self.bill is None else self.bill.details

    @property
    def cause(self) -> str:
        """The name of the cause."""
        return "" if self.end_cause is None else self.end_cause.name
