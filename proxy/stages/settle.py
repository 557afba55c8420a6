"""Step 7: journal and settle the call, then report it. Runs once per request, however the request ended.

`journal_end` runs before the last byte leaves: it writes the close record and settles the reservations. `report` runs
after, for metrics and access log. Neither awaits, because both also run in cancelled tasks, and `report` within the
journal's write.
"""

import logging
from itertools import islice
from time import perf_counter, time_ns

from policy.billing import FIRST_ERROR_STATUS, REPORTED, event_details, event_end
from policy.limits.kinds import LimitType
from policy.prices import amount_text
from policy.spend.spend_hash import amount_of_picos
from proxy.accounting.call_costs import billed_picos
from proxy.accounting.journaled_call import UnwrittenRecord
from proxy.accounting.metering import NO_BILL, Bill, bill_so_far
from proxy.accounting.recovery import WITHDRAWN_STATUS, close_record
from proxy.accounting.request_report import CallLabels, RequestReport
from proxy.accounting.spend_taken import SpendTaken
from proxy.exchange import Admitted, RequestContext
from proxy.parts import Parts
from proxy.records.head_facts import Purpose

log = logging.getLogger(__name__)

_TOKEN = LimitType.TOKEN  # a global is ten times as fast as a member
_COUNT = Purpose.COUNT
LOG_INTERVAL_S = 1.0
SHED_STATUS = 529
_REJECTED = (
    "Usage report rejected (slug %s: %s; %d since the last such line). These calls are billed by what was"
    " delivered. Fix the target's server, or raise TOLLGATE_MAX_REPORTED_TOKENS if its figures are right."
)
_OVERRUN = (
    "A call cost more than HARD spend limits or a prepaid balance had reserved for it (slug %s: %s of %s %s; %d since"
    " the last such line). Its provider reported more tokens than the request allowed, so what is spent may pass the"
    " limit, or what was paid in. Check the provider's figures, and raise max_input_tokens and max_output_tokens of the"
    " slug's price if they are too low."
)
MAX_LABELS = 16
"""Most labels that are kept with a key."""


class Settle:
    """Ends requests."""

    def __init__(self, parts: Parts) -> None:
        self._journal = parts.journal
        self._counters = parts.counters
        self._spend = parts.spend
        self._output_estimates = parts.output_estimates
        self._meters = parts.meters
        self._rejections = _PacedWarning(_REJECTED)
        self._overruns = _PacedWarning(_OVERRUN)

    def journal_end(self, context: RequestContext) -> UnwrittenRecord | None:
        """Journal how an admitted call ended, and settle what it reserved. Does nothing the second time.

        Returns the close record if the last bytes must wait for it. It is written also if nobody waits.
        """
        admitted = context.admitted
        if admitted is None or context.ended:
            return None
        context.ended = True
        bill = context.reported or self._bill(context, admitted)
        tokens = bill.tokens
        reservations = admitted.take.reservations
        counters = self._counters
        total = tokens.input + tokens.output
        # What is returned gets no number: a replay of the journal must find nothing to settle.
        numbers = tuple(islice(counters.numbers, len(reservations))) if context.dispatched else ()
        pending_record = None
        ended_at_ms = time_ns() // 1_000_000
        try:
            if context.journaled is not None:
                context.billed = bill
                status = context.status if context.dispatched else _status_of_unsent(context)
                details = event_details(bill.details, bill.source, is_count=context.facts.purpose is _COUNT)
                end = event_end(ended_at_ms, status, tokens, details)
                record = close_record(event_key=admitted.event_key, end=end, numbers=numbers)
                pending_record = self._journal.close(context.journaled, record)
        finally:
            if context.dispatched:
                for reservation, number in zip(reservations, numbers, strict=True):
                    actual = total if reservation.type is _TOKEN else reservation.type.amount(tokens)
                    counters.settle(reservation, number=number, actual_tokens=actual)
                if admitted.take.place is not None:
                    admitted.take.place.release()
            else:
                counters.give_back(admitted.take)
            if admitted.spend is not None:
                self._end_spend(context, admitted, admitted.spend, bill, ended_at_ms)
        overrun = total - admitted.estimate.expected - admitted.estimate.margin
        if overrun > 0 and reservations:
            self._meters.reservation_overrun(overrun)
        if bill.source is REPORTED:
            plan = admitted.route.plan
            self._output_estimates.record(plan.group_id, plan.slug, tokens.output)
        return pending_record

    def _end_spend(
        self, context: RequestContext, admitted: Admitted, reserved: SpendTaken, bill: Bill, at_ms: int
    ) -> None:
        """Replace what spend limits and the balance reserve by the event's cost, until control has counted it."""
        if not context.dispatched or context.journaled is None:  # no event, or one that costs nothing
            self._spend.give_back(reserved)
            return
        route = admitted.route
        plan = reserved.plan
        is_charged = context.status < FIRST_ERROR_STATUS and context.facts.purpose is not _COUNT
        picos = billed_picos(route.prices, plan.currency, at_ms, bill, is_charged=is_charged)
        self._spend.end(reserved, picos)
        if picos > reserved.picos and plan.is_hard:
            self._meters.spend_overrun()
            amounts = [amount_text(amount_of_picos(one)) for one in (picos, reserved.picos)]
            self._overruns.note(route.plan.slug, *amounts, plan.currency)

    def _bill(self, context: RequestContext, admitted: Admitted) -> Bill:
        """Return what to bill: what was reported; without a plausible report, what was delivered, else zero."""
        if context.reader is None or context.delivered is None:
            return NO_BILL
        reported = context.reader.reported
        if reported.tokens is not None:
            return bill_so_far(reported, context.delivered)
        if reported.rejected:
            self._rejections.note(admitted.route.plan.slug, reported.rejected)
        if not context.answered:
            return NO_BILL
        if reported.rejected or context.delivered.expects_usage:
            self._meters.usage_not_reported("rejected" if reported.rejected else "missing")
        return bill_so_far(reported, context.delivered)

    def report(self, context: RequestContext) -> None:
        """Log and count. A request with a group's key carries the group's label, whatever its outcome.

        A look of the console is neither logged nor counted: control logs what its pages do. It leads to no target.
        """
        incoming = context.incoming
        outgoing = context.outgoing
        shape = context.shape
        route = context.route
        bill = context.billed
        labels = None if shape is None else shape.labels
        if labels is None:
            if context.facts.is_look:
                return
            labels = _labels(context)
        duration_s = perf_counter() - incoming.received_at
        upstream_s = context.upstream_s
        ours_s = duration_s - upstream_s - incoming.body_wait_s - outgoing.room_wait_s
        report = RequestReport(
            labels=labels,
            ended_at_ms=time_ns() // 1_000_000,
            request_id=context.request_id,
            status=context.status,
            end_cause=context.end_cause,
            request_bytes=context.request_bytes if context.upload is None else context.upload.received_bytes,
            response_bytes=outgoing.sent_bytes,
            bill=bill,
            event_key=None if bill is None else context.admitted.event_key,  # type: ignore[union-attr]
            duration_s=duration_s,
            ours_s=ours_s if ours_s > 0.0 else 0.0,
            upstream_s=upstream_s,
            first_byte_s=context.first_byte_s,
            is_count=context.facts.purpose is _COUNT,
            route=route,
        )
        self._meters.finished(report)


def _status_of_unsent(context: RequestContext) -> int:
    """The status to journal for a call of which nothing was sent. One that was shed has no event."""
    return WITHDRAWN_STATUS if context.status == SHED_STATUS else context.status


def _labels(context: RequestContext) -> CallLabels:
    """The labels of the key's calls to this slug and path, kept with the key, and with the call's shape."""
    identified = context.identified
    route = context.route
    shape = context.shape
    if route is None or identified is None:
        return _new_labels(context)
    place = (route.plan.slug, context.incoming.method, context.facts.path)
    labels_of_key = identified.labels
    labels = labels_of_key.get(place)
    if labels is None:
        if len(labels_of_key) >= MAX_LABELS:
            labels_of_key.clear()
        labels = labels_of_key[place] = _new_labels(context)
    if shape is not None:
        shape.labels = labels
    return labels


def _new_labels(context: RequestContext) -> CallLabels:
    identified = context.identified
    route = context.route
    direct = context.direct
    key = identified.key if identified is not None else None
    group = identified.group if identified is not None else None
    return CallLabels(
        method=context.incoming.method,
        path=context.facts.path,
        workspace_id=key.workspace_id if key is not None else "",
        external_entity_id=group.external_entity_id if group is not None else "",
        group_id=(key.group_id or "") if key is not None else "",
        key_prefix=key.prefix if key is not None else "",
        slug=route.plan.slug if route is not None else "",
        model_id=direct.replica_request.model_id if direct is not None else "",
    )


class _PacedWarning:
    """A warning that is logged at most once per `LOG_INTERVAL_S`. Its last value is the number since the last line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._unlogged = 0
        self._not_before = 0.0

    def note(self, *values: object) -> None:
        self._unlogged += 1
        if (now := perf_counter()) < self._not_before:
            return
        log.warning(self._text, *values, self._unlogged)
        self._unlogged = 0
        self._not_before = now + LOG_INTERVAL_S
