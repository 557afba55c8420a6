"""The billing event: its fields, and the only code that writes its JSON.

A journal holds the two halves of an event, so shipping decodes nothing. `public_event` is the form for customers.

See docs/reference/events-and-webhooks.md#the-event.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import Any, NamedTuple, Protocol

import orjson

EVENT_TYPE = "API_BILLING_USAGE"
MAX_COUNT = 2**53 - 1
"""The largest figure of an event: exact as a JSON number, and far below BIGINT even when summed."""


MAX_REPORTED_TOKENS = 4_000_000
"""The largest accepted figure of a provider's usage report, unless a setting says otherwise."""

REPORTED = "REPORTED"
COUNTED = "COUNTED"
"""The sources of a call's figures: all reported by its provider, or at least one counted by us."""
MAX_TIER_CHARS = 64
"""The longest name of a service tier that is recorded. A longer one is none that a price can have."""
_EVENT_END = b'"ended_at_ms":%d,"status":%d,"tokens":[%d,%d,%d]'
"""The second half of an event's JSON without its end, how the call ended: UTC milliseconds, status, `Tokens`."""

FIRST_ERROR_STATUS = 400
TIERS_KEPT = 128
"""Names of service tiers whose details stay in memory."""

PAYERS_KEPT = 4096
"""(key, slug) pairs whose shared members stay encoded, at about 400 bytes each."""


class Tokens(NamedTuple):
    """The tokens of a call. `input` includes cached input; `cached_input` is the cached part."""

    input: int = 0
    output: int = 0
    cached_input: int = 0

    @classmethod
    def from_wire(cls, counts: Sequence[int]) -> "Tokens":
        """Build the tokens from the three numbers of the wire form."""
        input, output, cached_input = counts
        return cls(input=input, output=output, cached_input=cached_input)

    @property
    def total(self) -> int:
        """The amount that TOKEN limits count: cached input at full weight (docs/reference/limits.md#tokens)."""
        return self.input + self.output


class Details(NamedTuple):
    """The figures of a call beside its `Tokens`. Zero or empty where nothing is known.

    `cache_write`: all input that was written to a cache, of which `cache_write_1h` for an hour. `reasoning`: a part of
    the output. Sound and pictures: parts of the input and of the output. `service_tier`: as the provider reported it.
    """

    cache_write: int = 0
    cache_write_1h: int = 0
    reasoning: int = 0
    audio_input: int = 0
    audio_output: int = 0
    image_input: int = 0
    image_output: int = 0
    server_tool_calls: int = 0
    service_tier: str = ""

    @property
    def figures(self) -> tuple[int, ...]:
        """All but the service tier, in the order of the wire form."""
        return self[:-1]


NO_DETAILS = Details()


class BillingEvent(NamedTuple):
    """One admitted and dispatched call through a slug. `idempotency_key` is a ULID, made before dispatch.

    `source`: `REPORTED` or `COUNTED`; None in an event of an older proxy, which has no details either. `group_path`:
    the ids from the root to the calling group, each with `/`; "" in an event of an older proxy. `is_count`: the call
    only counted tokens. `balance_group`: the group whose prepaid balance the call draws from; "" without one.
    """

    idempotency_key: str
    workspace_id: str
    group_id: str
    external_entity_id: str
    api_key_prefix: str
    request_id: str
    model_slug: str
    ended_at_ms: int
    status: int
    tokens: Tokens
    request_metadata: Mapping[str, Any] | None = None
    details: Details = NO_DETAILS
    source: str | None = None
    group_path: str = ""
    is_count: bool = False
    balance_group: str = ""

    @property
    def is_charged(self) -> bool:
        """Return whether the call costs `per_call`. In events of older proxies each one does."""
        return is_charged(self.source, self.status, self.is_count)

    def to_wire(self) -> dict[str, Any]:
        """The event as ingest takes it."""
        start = event_start(
            idempotency_key=self.idempotency_key,
            payer=payer_members(Payer(*itemgetter(*Payer._fields)(self._asdict()))),
            request_id=self.request_id,
            request_metadata=self.request_metadata,
        )
        end = event_end(
            self.ended_at_ms, self.status, self.tokens, event_details(self.details, self.source, is_count=self.is_count)
        )
        wire: dict[str, Any] = orjson.loads(join_event(start, end))
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "BillingEvent":
        """The inverse of `to_wire`. Raises KeyError, TypeError or ValueError if the shape is wrong.

        No event fails for the size of a figure: above MAX_COUNT, as a journal of an older proxy may hold it, it counts
        as that.
        """
        counts = wire["tokens"]
        if not isinstance(counts, list) or len(counts) != 3 or not all(map(_is_figure, counts)):
            raise ValueError("tokens are three whole numbers of at least 0: input, output, cached input")
        if not all(isinstance(wire[name], str) for name in _TEXTS):
            raise TypeError(f"these are text: {', '.join(_TEXTS)}")
        if not (_is_count(wire["ended_at_ms"]) and _is_count(wire["status"])):
            raise TypeError("ended_at_ms and status are whole numbers of at least 0")
        if not isinstance(wire["request_metadata"], Mapping | None):
            raise TypeError("request_metadata is an object or null")
        further = {name: column[0] for name, column in _further([wire]).items()}
        members = {name: wire[name] for name in _REQUIRED} | further
        members["tokens"] = Tokens.from_wire([min(count, MAX_COUNT) for count in counts])
        return cls(**members)


def is_charged(source: str | None, status: int, is_count: bool) -> bool:
    """Return whether a call costs `per_call`, by these fields of its event."""
    return source is None or (status < FIRST_ERROR_STATUS and not is_count)


EventColumns = Mapping[str, Sequence[Any]]
"""Many events as columns: of each field of `BillingEvent` the values of all events, in one order."""


def columns_of(events: Sequence[BillingEvent]) -> EventColumns:
    """The events as columns."""
    columns = zip(*events, strict=True) if events else [()] * len(BillingEvent._fields)
    return dict(zip(BillingEvent._fields, columns, strict=True))


def columns_from_wires(wires: Sequence[Any]) -> EventColumns | None:
    """The events of many wire forms; None if one is malformed, or has a figure above MAX_COUNT. `tokens` are lists.

    Reads them column by column, in a tenth of the time of `from_wire`, which says what is wrong.
    """
    try:
        columns: dict[str, Sequence[Any]] = {name: [wire[name] for wire in wires] for name in _REQUIRED}
        further = _further(wires)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    counts = columns["tokens"]
    if set(map(type, counts)) != {list} or set(map(len, counts)) != {len(Tokens._fields)}:
        return None
    figures = [*chain.from_iterable(counts), *columns["ended_at_ms"], *columns["status"]]
    if set(map(type, figures)) != {int} or min(figures) < 0 or max(figures) > MAX_COUNT:
        return None
    if any(set(map(type, columns[name])) != {str} for name in _TEXTS):
        return None
    if not set(map(type, columns["request_metadata"])) <= {dict, NoneType}:
        return None
    return columns | further


def event_start(
    *, idempotency_key: str, payer: bytes, request_id: str, request_metadata: Mapping[str, Any] | None
) -> bytes:
    """The first half of an event's JSON: what is known before the call is dispatched. `payer`: `payer_members`."""
    metadata = b"null" if request_metadata is None else orjson.dumps(request_metadata)
    return b'{"idempotency_key":"%b",%b,"request_id":%b,"request_metadata":%b' % (
        idempotency_key.encode(),
        payer,
        orjson.dumps(request_id),
        metadata,
    )


class Payer(NamedTuple):
    """The members that all events of one key through one slug share. The last two are as in `BillingEvent`."""

    workspace_id: str
    group_id: str
    external_entity_id: str
    api_key_prefix: str
    model_slug: str
    group_path: str = ""
    balance_group: str = ""


@lru_cache(PAYERS_KEPT)
def payer_members(payer: Payer) -> bytes:
    """The payer as members of an event's JSON. Cached, because most calls repeat them."""
    members = {name: text for name, text in payer._asdict().items() if text or name not in _DEFAULTS}
    return orjson.dumps(members)[1:-1]


@lru_cache(1024)
def event_details(details: Details, source: str | None, *, is_count: bool = False) -> bytes:
    """The end of an event's JSON: what else the call cost. Cached: few calls have more than a source and a tier."""
    members: dict[str, Any] = {}
    if source is not None:
        members["source"] = source
    if details.service_tier:
        members["service_tier"] = details.service_tier
    if any(details.figures):
        members["details"] = details.figures
    if is_count:
        members["is_count"] = True
    return b"," + orjson.dumps(members)[1:] if members else b"}"


def event_end(ended_at_ms: int, status: int, tokens: Tokens, details: bytes) -> bytes:
    """The second half of an event's JSON. `details`: `event_details`."""
    return _EVENT_END % (ended_at_ms, status, *tokens) + details


def join_event(start: bytes, end: bytes) -> bytes:
    """An event's JSON, as ingest takes it."""
    return b"%b,%b" % (start, end)


class EventRow(Protocol):
    """An event as control's database holds it. Its columns have these names."""

    @property
    def idempotency_key(self) -> str: ...

    @property
    def request_id(self) -> str: ...

    @property
    def model_slug(self) -> str: ...

    @property
    def external_entity_id(self) -> str: ...

    @property
    def api_key_prefix(self) -> str: ...

    @property
    def input_tokens(self) -> int: ...

    @property
    def output_tokens(self) -> int: ...

    @property
    def cached_input_tokens(self) -> int: ...


def public_event(row: EventRow, timestamp: str) -> dict[str, Any]:
    """The event as customers get it, from the list of events and in webhooks. `timestamp`: ISO 8601."""
    return {
        "type": EVENT_TYPE,
        "idempotencyKey": row.idempotency_key,
        "timestamp": timestamp,
        "requestId": row.request_id,
        "modelSlug": row.model_slug,
        "externalEntityId": row.external_entity_id,
        "apiKeyPrefix": row.api_key_prefix,
        "tokens": {
            "inputTokens": row.input_tokens,
            "outputTokens": row.output_tokens,
            "cachedInputTokens": row.cached_input_tokens,
        },
    }


_DEFAULTS: Mapping[str, Any] = {
    "details": (),
    "service_tier": "",
    "source": None,
    "group_path": "",
    "is_count": False,
    "balance_group": "",
}
"""The members that an older proxy does not write, and their values then."""
_SOURCES = {None, REPORTED, COUNTED}
_REQUIRED = tuple(name for name in BillingEvent._fields if name not in _DEFAULTS)
_TEXTS = (
    "idempotency_key",
    "workspace_id",
    "group_id",
    "external_entity_id",
    "api_key_prefix",
    "request_id",
    "model_slug",
)


def _is_figure(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_count(value: object) -> bool:
    return _is_figure(value) and value <= MAX_COUNT  # type: ignore[operator]  # it is an int


def _further(wires: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
    """The columns of what an older proxy does not write. Raises TypeError or ValueError if an event is malformed."""
    columns: dict[str, Sequence[Any]] = {
        name: [wire.get(name, default) for wire in wires] for name, default in _DEFAULTS.items()
    }
    tiers = columns.pop("service_tier")
    if set(map(type, chain(tiers, columns["group_path"], columns["balance_group"]))) != {str}:
        raise TypeError("service_tier, group_path and balance_group are text")
    if not set(columns["source"]) <= _SOURCES:
        raise ValueError(f"source is {REPORTED} or {COUNTED}")
    if set(map(type, columns["details"])) == {tuple}:  # the default
        of_tiers = {tier: _details_of_tier(tier) for tier in set(tiers)}
        columns["details"] = [of_tiers[tier] for tier in tiers]
    else:
        columns["details"] = list(map(_details, columns["details"], tiers))
    columns["is_count"] = [is_count is True for is_count in columns["is_count"]]
    return columns


def _details(figures: Sequence[int], tier: str) -> Details:
    if figures == ():
        return _details_of_tier(tier)
    if not isinstance(figures, list) or not all(map(_is_figure, figures)):
        raise ValueError("details are whole numbers of at least 0")
    counts = [min(figure, MAX_COUNT) for figure in figures[: len(NO_DETAILS.figures)]]
    return Details(*counts)._replace(service_tier=_details_of_tier(tier).service_tier)


@lru_cache(TIERS_KEPT)
def _details_of_tier(tier: str) -> Details:
    """Details of which no figure is known. A tier is what a provider reported, and no event fails for it."""
    return Details(service_tier=tier.replace("\0", "")[:MAX_TIER_CHARS])
