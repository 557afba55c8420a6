"""Counts what a caller's first call costs on canned wires. `python -m tests.proxy.budget.first_calls` prints it.

Each call has a key of its own in a group of its own, or a known key and a slug of its own. All that callers share, such
as the form of their heads, was made for others before.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from policy.credentials import KeyKind
from policy.endpoints import Target
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.snapshot import EndpointRow, KeyRow, Row, group_to_wire
from proxy.edges.http.connection import Connection
from tests.proxy.budget.canned_wires import CannedCaller
from tests.proxy.budget.canned_worker import CALLERS, KEY, SLUG, CannedWorker, canned_worker, request_of
from tests.proxy.budget.counting import Counts, Spent, counting_bytecodes, counting_calls, report

WARM_CALLS = CALLERS * 10
COUNTED_CALLS = CALLERS * 20
_CALLS = WARM_CALLS + 2 * COUNTED_CALLS
_RATES = (Limit(LimitType.REQUEST, Unit.MINUTE, 10**9), Limit(LimitType.TOKEN, Unit.MINUTE, 10**12))


class FurtherCaller(CannedCaller):
    """Sends requests one after another, each with the answer to the one before."""

    def __init__(self, worker: CannedWorker, requests: Sequence[bytes]) -> None:
        self._requests = iter(requests)
        super().__init__(worker.server.buffer, Connection(worker.server), b"", len(requests))

    def _send(self) -> None:
        self._request = next(self._requests)
        super()._send()


def key_of(number: int) -> str:
    """A key as long as `KEY`."""
    return f"tg_{number:040d}"


def slug_of(number: int) -> str:
    """A slug as long as `SLUG`."""
    return f"acme/{number:04d}"


def rows_of_keys() -> Iterator[Row]:
    """Keys, each in a group of its own below the canned worker's lowest one."""
    for number in range(_CALLS):
        entry = SlugLimits(SLUG, _RATES, ())
        group = Group(f"leaf_{number}", "ws_1", "grp_2", f"leaf-{number}", Enforcement.CASCADING, (entry,))
        yield Row("group", group.id, 1, group_to_wire(group))
        text = key_of(number)
        key = KeyRow(sha256(text.encode()).hexdigest(), text[:12], KeyKind.FEDERATED, "ws_1", group.id)
        yield Row("key", key.digest, 1, key.to_wire())


def rows_of_slugs() -> Iterator[Row]:
    """Slugs that the canned worker's key may call."""
    entries = tuple(SlugLimits(slug_of(number), _RATES, ()) for number in range(_CALLS))
    for level in range(3):
        above = f"grp_{level - 1}" if level else None
        group = Group(f"grp_{level}", "ws_1", above, f"customer-{level}", Enforcement.CASCADING, entries)
        yield Row("group", group.id, 1, group_to_wire(group))
    target = Target("VENDOR_B", secret_id="sec_1", target_model="gpt")
    for number in range(_CALLS):
        slug = slug_of(number)
        yield Row("endpoint", slug, 1, EndpointRow(slug, f"ep_{number}", "ws_1", target).to_wire())


async def serve(worker: CannedWorker, requests: Sequence[bytes]) -> list[FurtherCaller]:
    """Answer these requests of eight callers."""
    callers = [FurtherCaller(worker, requests[place::CALLERS]) for place in range(CALLERS)]
    for caller in callers:
        await caller.end
    return callers


def spent_per_first_call(*, of_keys: bool) -> Spent:
    """Count what the first call of a key in a new group takes; else that of a known key to a new slug."""
    call = request_of()
    if of_keys:
        requests = [call.replace(KEY.encode(), key_of(number).encode()) for number in range(_CALLS)]
    else:
        requests = [call.replace(SLUG.encode(), slug_of(number).encode()) for number in range(_CALLS)]
    counts = Counts()
    with canned_worker() as (runner, worker):
        worker.publish(*(rows_of_keys() if of_keys else rows_of_slugs()))
        first = WARM_CALLS
        runner.run(serve(worker, requests[:first]))
        for counting in (counting_calls, counting_bytecodes):
            with counting(counts):
                runner.run(serve(worker, requests[first : first + COUNTED_CALLS]))
            first += COUNTED_CALLS
    return counts.per(COUNTED_CALLS)


def main() -> None:
    for of_keys in (True, False):
        print(report(spent_per_first_call(of_keys=of_keys)))


if __name__ == "__main__":
    main()
