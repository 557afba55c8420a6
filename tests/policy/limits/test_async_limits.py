"""The plans of asynchronous requests: whose they are, and that no other plan counts in their hashes."""

from policy.limits.async_limits import LOOK_UPS, SUBMISSIONS, console_looks_plan, look_ups_plan, submissions_plan
from policy.limits.kinds import LimitType, Unit
from policy.limits.tiers import DEFAULT_TIERS, tier_plan


def test_thresholds_are_those_of_the_contract() -> None:
    assert (SUBMISSIONS.type, SUBMISSIONS.unit, SUBMISSIONS.threshold) == (LimitType.REQUEST, Unit.MINUTE, 12_000)
    assert (LOOK_UPS.type, LOOK_UPS.unit, LOOK_UPS.threshold) == (LimitType.REQUEST, Unit.SECOND, 100)


def test_each_workspace_has_hashes_of_its_own() -> None:
    makers = submissions_plan, look_ups_plan, console_looks_plan
    plans = [make(workspace) for make in makers for workspace in ("ws_1", "ws_2")]
    plans.append(tier_plan("ws_1", DEFAULT_TIERS["basic"]))
    assert len({plan.key for plan in plans}) == 7
    assert [bound.counting_group for plan in plans[:2] for bound in plan.bounds] == ["ws_1", "ws_2"]
