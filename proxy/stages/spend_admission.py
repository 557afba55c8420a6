"""Part of step 4, where spend limits or a balance bind: reserve what a call may cost (429; 400 402 503), and cap it.

SOFT limits reserve what a call is expected to cost. Where one is HARD, or there is a balance, the most that it can cost
is reserved, and the output cap that this pays for goes upstream. See docs/reference/money.md#spend-limits.
"""

from asyncio import CancelledError
from collections.abc import Sequence
from functools import partial
from time import time_ns

from policy.billing import MAX_COUNT
from policy.limits.alerts import ReachedLimit
from policy.limits.effective import Plan
from policy.limits.settlement import Estimate
from policy.prices import amount_text
from policy.spend.effective import BalanceBound, SpendPlan
from policy.spend.key_names import key_of_name
from policy.spend.spend_hash import MAX_PICOS, picos_of_amount
from proxy.accounting.call_bound import WITHOUT_OUTPUT
from proxy.accounting.call_costs import expected_picos
from proxy.accounting.cost_bounds.cost_bound import CAPPED_PATHS, CostBound, Unbounded, cost_bound
from proxy.accounting.reservations import BALANCE, SPEND, UNAVAILABLE, LimitHit, Taken
from proxy.accounting.spend_taken import SpendHit, SpendTaken, SpendUnavailable
from proxy.accounting.ulids import Ulids
from proxy.dialects.output_caps import is_capped_at
from proxy.directory_values import SlugRoute
from proxy.errors import CountersUnavailableError
from proxy.exchange import RequestContext
from proxy.http_rules.guarded_members import check_names_of_cost
from proxy.http_rules.headers import output_cap_line
from proxy.http_rules.limit_refusal import above_limit_refusal, spend_refusal
from proxy.http_rules.strict_json import are_surely_unique, check_members_are_unique
from proxy.http_rules.vendor_state import searched_text
from proxy.parts import Parts
from proxy.records.head_facts import Purpose
from proxy.refusals import UnboundedCostError, UnpricedError
from proxy.time_slices import Slices

_COUNT = Purpose.COUNT  # a global is ten times as fast as a member
_FEW_BYTES = 16 << 10
"""A body of this size is read closely at once, a longer one beside the event loop."""
_DUMPED_BYTES = 512 << 10
"""A longer body is not even compared at once."""


class AdmitSpend:
    """Asks limits, and spend limits and the balance, for a call that both may bind."""

    def __init__(self, parts: Parts, ulids: Ulids, slices: Slices) -> None:
        self._slices = slices
        self._counters = parts.counters
        self._spend = parts.spend
        self._meters = parts.meters
        self._assumed_output = parts.assumed_output_tokens
        self._call_timeout_ms = int(parts.call_timeout_s * 1000)
        self._ulids = ulids

    async def __call__(
        self, context: RequestContext, estimate: Estimate, further: Sequence[Plan], is_plain: bool
    ) -> tuple[Taken | LimitHit, SpendTaken | None]:
        """Ask limits and spend limits in the same tick. Unless both admit, return what either took, once.

        A refusal by limits comes first. One by spend limits or the balance raises. Sets the `x-ratelimit-*` lines of a
        call that limits admit, and the output cap that was granted. `is_plain`: see `plain_text.py`.
        """
        route = context.route
        assert route is not None
        spend = route.spend
        assert spend is not None  # else this is not called
        bound = None
        if spend.is_hard and context.facts.purpose is not _COUNT:
            if context.upload is None:
                if not is_plain:
                    check_names_of_cost(context.json)
                text = searched_text(context)
                if len(text) > _DUMPED_BYTES or not are_surely_unique(context.json, text):
                    await self._check_closely(context, text)
            bound = self._bound(context, estimate, route, is_plain)
            picos = bound.whole_picos
        else:
            expected = expected_picos(route.prices, spend.currency, time_ns() // 1_000_000, estimate)
            if expected is None:
                raise UnpricedError(route.plan.slug, spend.currency)
            picos = 0 if context.facts.purpose is _COUNT else expected  # a count, too, is refused while nothing is left
        least_picos = 0 if bound is None else bound.least_picos
        event_key = context.request_id if context.facts.request_id is None else self._ulids.make()
        spend_question = self._spend.ask(spend, event_key, picos, least_picos)
        answer: Taken | LimitHit | None = None
        reserved: SpendTaken | None = None
        try:
            question = self._counters.ask(route.plan, estimate, further)
            try:
                answer = await question
            except CancelledError:
                self._counters.abandon(question)
                raise
            if isinstance(answer, LimitHit):
                return answer, None
            context.rate_limit_lines = answer.lines
            reply = await spend_question
            if not isinstance(reply, SpendTaken):
                raise self._refusal(context, reply, least_picos)
            if bound is not None:
                context.cost_bound = bound
                cap = bound.cap if reply.picos == picos < MAX_PICOS else bound.cap_within(reply.picos)
                if cap != context.output_cap or not is_capped_at(cap, context.json, context.facts.path):
                    _cap(context, bound, cap)
            reserved = reply
            return answer, reserved
        except CountersUnavailableError:
            self._meters.limit_decision(UNAVAILABLE)
            raise
        finally:
            if reserved is None:
                self._spend.abandon(spend_question)
                if isinstance(answer, Taken):
                    self._counters.give_back(answer)

    async def _check_closely(self, context: RequestContext, text: bytes) -> None:
        """Refuse a body that another parser could read differently: it could ask for more than is reserved."""
        check = partial(check_members_are_unique, text)
        await self._slices.beside(context.workspace_id, check) if len(text) > _FEW_BYTES else check()

    def _bound(self, context: RequestContext, estimate: Estimate, route: SlugRoute, is_plain: bool) -> CostBound:
        """Return the most that the call can cost. Raises if it has no price or no bound, or no limit could hold it."""
        spend = route.spend
        assert spend is not None  # else nothing is bounded
        prices = route.prices
        now_ms = time_ns() // 1_000_000
        rates = None if prices is None else prices.dearest(now_ms, now_ms + self._call_timeout_ms, spend.currency)
        if rates is None:
            raise UnpricedError(route.plan.slug, spend.currency)
        most_tokens = None if is_plain else _most_tokens(context, estimate)
        bound = cost_bound(context, rates, self._assumed_output, most_tokens, is_plain=is_plain)
        if isinstance(bound, Unbounded):
            raise UnboundedCostError(route.plan.slug, bound.missing)
        if bound.least_picos > spend.least_hard_picos:
            raise _above(spend, bound.least_picos)
        return bound

    def _refusal(self, context: RequestContext, reply: SpendHit | SpendUnavailable, least_picos: int) -> Exception:
        """The refusal of a call that limits admit. A decision that is unavailable is counted where it is caught."""
        if isinstance(reply, SpendUnavailable):
            return CountersUnavailableError()
        bound = reply.bound
        is_reached = reply.is_spent
        if isinstance(bound, BalanceBound):
            kind, unit, group = (BALANCE, "", bound.group_id)
            deposited = amount_text(bound.balance.deposited)
            # A call above all that was ever paid in says nothing of what is left.
            is_reached &= least_picos <= picos_of_amount(bound.balance.deposited)
        else:
            kind, unit, group = (SPEND, bound.limit.unit.value, bound.counting_group)
            deposited = ""
        self._meters.limit_decision(("refused", kind, unit))
        if is_reached and key_of_name(group) is None:  # customers and webhooks are told of groups alone
            limit = ReachedLimit(context.workspace_id, group, slug="", type="", unit=unit, deposited=deposited)
            self._meters.limit_reached(limit)
        return spend_refusal(reply)


def _most_tokens(context: RequestContext, estimate: Estimate) -> int | None:
    """Return what `most_input` said of the body; None where the estimate does not tell it to the token."""
    most = estimate.expected + estimate.margin
    if context.output_cap is None or most >= MAX_COUNT or context.facts.path in WITHOUT_OUTPUT:
        return None
    return most - estimate.output - estimate.output_margin  # with a cap, all that is not output is `most_input`


def _above(spend: SpendPlan, least_picos: int) -> Exception:
    """The refusal of a call that no window of a HARD limit could hold."""
    hard = [each for each in spend.bounds if each.limit.is_hard]
    too_low = [each for each in hard if picos_of_amount(each.limit.amount) < least_picos]
    return above_limit_refusal(least_picos, too_low[0])


def _cap(context: RequestContext, bound: CostBound, cap: int) -> None:
    """Have the target sent this output cap, if the body can have one. The caller is told of one that is lower."""
    if context.facts.path not in CAPPED_PATHS or context.upload is not None:
        return
    context.granted_cap = cap
    if cap < (context.output_cap or bound.cap):
        context.rate_limit_lines += output_cap_line(cap)
