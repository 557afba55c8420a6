"""Limits on how often a workspace may queue, look up and cancel asynchronous requests.

See docs/reference/limits.md#asynchronous-requests.
"""

from policy.limits.effective import Plan, plan_of_limits
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit

SUBMISSIONS = Limit(LimitType.REQUEST, Unit.MINUTE, 12_000)
"""Calls of `async_predict`."""
LOOK_UPS = Limit(LimitType.REQUEST, Unit.SECOND, 100)
"""Calls for the status of a request or of a queue, and cancellations."""


def submissions_plan(workspace_id: str) -> Plan:
    """The plan that counts a call of `async_predict`. No group's hash has these keys: both words are no group ids."""
    return _plan("async_predict", workspace_id, SUBMISSIONS)


def look_ups_plan(workspace_id: str) -> Plan:
    """The plan that counts the other calls about asynchronous requests."""
    return _plan("async_request", workspace_id, LOOK_UPS)


def console_looks_plan(workspace_id: str) -> Plan:
    """The plan that counts look-ups by pages of the console, as many again, so that looking refuses no customer."""
    return _plan("console_looks", workspace_id, LOOK_UPS)


def _plan(what: str, workspace_id: str, limit: Limit) -> Plan:
    return plan_of_limits(what, workspace_id, f"tg:{{{what}|{workspace_id}}}", (limit,))
