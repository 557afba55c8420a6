"""Step 4: take from every limit's bucket at once, or from none (429; 503 if the counters are unreachable).

Where spend limits or a balance bind, `spend_admission.py` also reserves what the call may cost. Nothing else constructs
`Admitted`.
"""

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping, Sequence

from policy.billing import MAX_COUNT
from policy.endpoints import MODEL_API
from policy.limits.alerts import ReachedLimit
from policy.limits.effective import Plan
from policy.limits.settlement import NO_TOKENS, Estimate
from policy.limits.tiers import Tier, tier_in_force, tier_plan
from policy.snapshot import WorkspaceRow
from proxy.accounting.call_bound import WITHOUT_OUTPUT, most_form_input, most_input
from proxy.accounting.cost_bounds.plain_text import is_plain_conversation
from proxy.accounting.reservations import ADMITTED, UNAVAILABLE, LimitHit, Taken
from proxy.accounting.spend_taken import SpendTaken
from proxy.accounting.ulids import Ulids
from proxy.directory_values import Identified
from proxy.errors import CountersUnavailableError
from proxy.exchange import Admitted, RequestContext
from proxy.http_rules.headers import rate_limit_lines
from proxy.http_rules.limit_refusal import limit_refusal
from proxy.parts import OutputEstimates, Parts
from proxy.records.head_facts import Purpose

_COUNT = Purpose.COUNT  # a global is ten times as fast as a member
BYTES_PER_TOKEN = 4
MAX_TIER_PLANS = 10_000
BothAnswers = tuple[Taken | LimitHit, SpendTaken | None]
TakeBoth = Callable[[RequestContext, Estimate, Sequence[Plan], bool], Awaitable[BothAnswers]]


class Tiers:
    """The model API's ceilings per workspace. Returns the same plan each time: counters know plans by identity."""

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers
        self._plans: dict[tuple[str, str], Plan] = {}

    def plan(self, workspace: WorkspaceRow) -> Plan:
        """An unknown tier counts as the lowest one, never as unlimited."""
        key = (workspace.id, workspace.tier)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MAX_TIER_PLANS:
                self._plans.clear()
            tier = tier_in_force(workspace.tier, self._tiers)
            plan = self._plans[key] = tier_plan(workspace.id, tier)
        return plan


class Estimates:
    """The likely cost of a call, and the most that it can cost.

    `assumed_output`: the cap of a call that has none. See docs/reference/limits.md#estimates.
    """

    def __init__(self, output_estimates: OutputEstimates, assumed_output: int) -> None:
        self._output_estimates = output_estimates
        self._assumed_output = assumed_output

    def of(self, context: RequestContext, plan: Plan, *, is_plain: bool = False) -> Estimate:
        """Return the estimate of a call. Neither figure is more than an event can report.

        `is_plain`: it is known to be a plain conversation (`plain_text.py`), of which each byte is a token at most.
        """
        body_bytes = len(context.body)
        path = context.facts.path
        cap = context.output_cap
        allowed = (cap or self._assumed_output) * context.answers
        output = self._output_estimates.expected_output(plan.group_id, plan.slug, cap and allowed)
        expected = -(-body_bytes // BYTES_PER_TOKEN) + output
        if is_plain:
            most = body_bytes
        elif context.upload is None:
            most = most_input(context.json, body_bytes, context.outline)
        else:
            most = most_form_input(path)
        if path in WITHOUT_OUTPUT:
            allowed = 0
        most += allowed
        most_output = allowed if allowed > output else output
        if most < expected:
            most = expected
        if most > MAX_COUNT:  # a cap or `n` of many digits
            most = MAX_COUNT
            expected = min(expected, MAX_COUNT)
            output = min(output, expected)
            most_output = min(most_output, MAX_COUNT)
        return Estimate(expected, most - expected, output, most_output - output)


class Admit:
    """Asks every limit up the group tree."""

    def __init__(self, parts: Parts, ulids: Ulids, take_both: TakeBoth) -> None:
        """`take_both`: asks limits, and spend limits and the balance, where both bind: `AdmitSpend`."""
        self._counters = parts.counters
        self._take_both = take_both
        self._tiers = Tiers(parts.tiers)
        self._estimates = Estimates(parts.output_estimates, parts.assumed_output_tokens)
        self._meters = parts.meters
        self._ulids = ulids

    async def admit(self, context: RequestContext, identified: Identified) -> Admitted:
        """Return the call as admitted, or raise why it is not."""
        route = context.route
        assert route is not None  # else `route` has raised
        plan = route.plan
        further = route.further
        if route.endpoint.target.provider == MODEL_API:
            # Free capacity in the groups' limits does not lift the target's own ceiling.
            # See docs/reference/limits.md#model-api-tiers.
            further = (self._tiers.plan(identified.workspace), *further)
        reserved = None
        if route.spend is None:
            estimate = NO_TOKENS if context.facts.purpose is _COUNT else self._estimates.of(context, plan)
            question = self._counters.ask(plan, estimate, further)
            try:
                answer = await question
            except CountersUnavailableError:
                self._meters.limit_decision(UNAVAILABLE)
                raise
            except CancelledError:
                self._counters.abandon(question)
                raise
        else:
            is_plain = route.spend.is_hard and is_plain_conversation(context.json, context.facts.path)
            is_count = context.facts.purpose is _COUNT
            estimate = NO_TOKENS if is_count else self._estimates.of(context, plan, is_plain=is_plain)
            answer, reserved = await self._take_both(context, estimate, further, is_plain)
        if isinstance(answer, LimitHit):
            context.rate_limit_lines = rate_limit_lines(answer.requests, answer.tokens)
            limit = answer.bound.limit
            self._meters.limit_decision(("refused", limit.type.value, limit.unit.value))
            if answer.leaves_no_room:
                place = (identified.workspace.id, answer.bound.counting_group, plan.slug)
                self._meters.limit_reached(ReachedLimit(*place, limit.type.value, limit.unit.value))
            raise limit_refusal(plan, answer, identified.workspace.id)
        self._meters.limit_decision(ADMITTED)
        if reserved is not None:  # its lines are set
            event_key = reserved.event_key
        else:
            context.rate_limit_lines = answer.lines
            # Our own request ids are as unique as event keys: a call needs no second one. A caller's may repeat.
            event_key = context.request_id if context.facts.request_id is None else self._ulids.make()
        return Admitted(
            identified=identified,
            route=route,
            take=answer,
            event_key=event_key,
            estimate=estimate,
            spend=reserved,
        )
