"""The real counters, as tests and measurements look at them."""

from policy.limits.effective import Plan
from policy.limits.take_numbers import TakeStamp
from proxy.edges.redis.counters import RedisCounters
from proxy.edges.redis.scripts import pack_stamp, take_template


def pending_settlements(counters: RedisCounters) -> int:
    """Return how many settlements Redis has not confirmed."""
    return counters._settlements.pending


def take_arguments(plan: Plan, lease_ms: int, stamp: TakeStamp) -> list[bytes]:
    """Return the arguments of take.lua up to the estimates."""
    packed = pack_stamp(stamp.deadline_ms, stamp.number, stamp.answered_through)
    return take_template(plan, lease_ms, stamp.incarnation, packed)
