"""A caller's first call stays within its budget, and keeps only what a second one may use."""

from tests.proxy.budget.canned_worker import CALLERS, SLUG, canned_worker, request_of
from tests.proxy.budget.counting import Counts, check, counting_calls, report
from tests.proxy.budget.first_calls import rows_of_slugs, serve, slug_of, spent_per_first_call

KEEP_SHAPE = ("proxy/edges/policy/directory.py", "SnapshotDirectory.keep_shape")


def test_first_call_of_a_key_in_a_new_group_stays_within_its_budget() -> None:
    check(lambda: spent_per_first_call(of_keys=True), report, calls=224.5, c_calls=253, bytecodes=8_160)


def test_first_call_of_a_slug_by_a_known_key_stays_within_its_budget() -> None:
    """The slug's endpoint is new, too."""
    check(lambda: spent_per_first_call(of_keys=False), report, calls=278.5, c_calls=290, bytecodes=9_430)


def test_what_calls_of_a_pair_share_is_kept_from_the_second_call_on() -> None:
    """A pair that is called once takes no room of pairs that are called again."""
    requests = [request_of().replace(SLUG.encode(), slug_of(number).encode()) for number in range(CALLERS)]
    keeps = []
    with canned_worker() as (runner, worker):
        worker.publish(*rows_of_slugs())
        runner.run(worker.serve(2))  # the head repeats from now on
        for _ in range(3):
            counts = Counts()
            with counting_calls(counts):
                callers = runner.run(serve(worker, requests))
            assert all(answer.startswith(b"HTTP/1.1 200") for caller in callers for answer in caller.answers)
            keeps.append(counts.calls[KEEP_SHAPE])
    assert keeps == [0, CALLERS, 0]
