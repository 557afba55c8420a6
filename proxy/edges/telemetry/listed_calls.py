"""Picks ended calls for the list of requests: at most some per workspace and second, which stand for all.

This is on the path of every call, so a step is a C function over many calls. The supervisor samples what all workers of
the machine sent, and makes rows of it. See docs/reference/management-api.md#requests.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from random import sample
from typing import Any

from policy.billing import FIRST_ERROR_STATUS
from policy.traffic import ListedRequest
from proxy.accounting.request_report import RequestReport
from proxy.accounting.request_samples import even_weights, shares
from proxy.refusals import BUG, TABLE

MAX_GATHERED = 4_096
"""Calls that are gathered before some are picked, though their second lasts on."""
MAX_PICKED = 10_000
"""Calls that wait while the channel is congested. The oldest are dropped."""
_FIELDS = (
    *("labels.workspace_id", "ended_at_ms", "status", "request_id", "labels.external_entity_id", "labels.key_prefix"),
    *("labels.slug", "labels.model_id", "labels.shown_path", "end_cause", "first_byte_s", "duration_s", "event_key"),
)
Values = Sequence[Any]
"""The figures of a call in the order of `_FIELDS`, as they go over the channel."""
_values_of = attrgetter(*_FIELDS)
_workspace_of = attrgetter("labels.workspace_id")
_status_of = attrgetter("status")
_ended_ms_of = attrgetter("ended_at_ms")
_CODES = {row.cause: row.code for row in (*TABLE.values(), BUG)}


class ListedCalls:
    """The calls of one worker. `most`: how many are picked per workspace and second."""

    def __init__(self, most: int, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._most = most
        self._clock_ns = clock_ns
        self._second = 0
        self._calls: list[RequestReport] = []
        """The calls that ended in `_second`."""
        self._picked: list[Values] = []
        self._weights: list[int] = []
        self._dropped = 0

    def add(self, calls: Sequence[RequestReport]) -> None:
        """Gather calls, in the order in which they ended."""
        start = 0
        while start < len(calls):
            second = calls[start].ended_at_ms // 1000
            if second != self._second or len(self._calls) >= MAX_GATHERED:
                self._pick()
                self._second = second
            # A clock that steps back meanwhile puts some into another's second.
            end = max(start + 1, bisect_left(calls, (second + 1) * 1000, start, key=_ended_ms_of))
            self._calls += calls[start:end]
            start = end

    @property
    def has_calls(self) -> bool:
        """Return whether there are calls to send, now or when their second is over."""
        return bool(self._picked or self._calls)

    @property
    def is_due(self) -> bool:
        """Return whether there are calls to send: those of a second that is over."""
        return bool(self._picked or (self._calls and self._clock_ns() // 1_000_000_000 != self._second))

    def drain(self, *, to_the_end: bool = False) -> dict[str, Any]:
        """Return what was picked of the seconds that are over, for the channel. `to_the_end`: of the last one too."""
        if to_the_end or self.is_due:
            self._pick()
        message = {"calls": self._picked.copy(), "weights": self._weights.copy(), "dropped": self._dropped}
        self._picked.clear()
        self._weights.clear()
        self._dropped = 0
        return message

    def _pick(self) -> None:
        """Pick some of the calls that were gathered, per workspace. Those with an unknown key belong to none."""
        calls = self._calls
        calls.sort(key=_workspace_of)
        del calls[: bisect_right(calls, "", key=_workspace_of)]
        if len(calls) <= self._most:
            self._add_picked(calls, [1] * len(calls))
        else:
            for _, own in groupby(calls, _workspace_of):
                self._sample(list(own))
        calls.clear()
        if (surplus := len(self._picked) - MAX_PICKED) > 0:
            self._dropped += sum(self._weights[:surplus])
            del self._picked[:surplus]
            del self._weights[:surplus]

    def _sample(self, calls: list[RequestReport]) -> None:
        """Pick some of the calls of one workspace."""
        if len(calls) <= self._most:
            self._add_picked(calls, [1] * len(calls))
            return
        calls.sort(key=_status_of)
        successes = bisect_left(calls, FIRST_ERROR_STATUS, key=_status_of)
        for_successes, for_others = shares(successes, len(calls) - successes, self._most)
        for kind, share in ((calls[:successes], for_successes), (calls[successes:], for_others)):
            if share:
                self._add_picked(sample(kind, share), even_weights(len(kind), share))

    def _add_picked(self, calls: list[RequestReport], weights: list[int]) -> None:
        self._picked += map(_values_of, calls)
        self._weights += weights


def place_of(values: Values) -> tuple[int, str]:
    """The second in which the call ended, and its workspace."""
    return values[1] // 1000, values[0]


def is_success(values: Values) -> bool:
    return bool(values[2] < FIRST_ERROR_STATUS)


def row_of(id: int, values: Values, weight: int) -> ListedRequest:
    """The row of a call that came over the channel."""
    workspace_id, ended_at_ms, status, request_id, entity_id, prefix, slug, model_id, path, cause, *rest = values
    first_byte_s, duration_s, event_key = rest
    limit = (cause or {}).get("limit") or {}
    return ListedRequest(
        id=id,
        workspace_id=workspace_id,
        timestamp_ms=ended_at_ms,
        request_id=request_id,
        external_entity_id=entity_id,
        api_key_prefix=prefix,
        slug=slug or model_id,
        path=path,
        status=status,
        error_code=(_CODES.get(cause["name"]) if cause else None) or "",
        limit_group_id=limit.get("group", ""),
        limit_type=limit.get("type", ""),
        limit_unit=limit.get("unit", ""),
        limit_threshold=limit.get("threshold", ""),
        first_byte_us=None if first_byte_s is None else int(first_byte_s * 1e6),
        duration_us=int(duration_s * 1e6),
        event_key=event_key or "",
        weight=weight,
    )
