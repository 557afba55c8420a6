"""A governed call stays within its budget of Python calls, C calls and bytecodes. Prints them by part: `pytest -s`."""

from tests.proxy.budget.canned_worker import ANSWER, CALLERS, REQUEST, SLUG, canned_worker, price_row
from tests.proxy.budget.counting import check, report, spent_per_call


def test_canned_call_is_a_governed_call() -> None:
    with canned_worker() as (runner, worker):
        callers = runner.run(worker.serve(4))
        assert worker.loop.redis.takes == CALLERS * 4
        assert worker.journal.pending == 0
    body = ANSWER.partition(b"\r\n\r\n")[2].replace(b'"gpt"', b'"%b"' % SLUG.encode())
    assert all(answer.endswith(body) for caller in callers for answer in caller.answers)


def test_governed_call_stays_within_its_budget() -> None:
    check(spent_per_call, report, calls=103.5, c_calls=177, bytecodes=4_935)


def test_call_of_a_priced_slug_stays_within_its_budget() -> None:
    """A price takes two Python calls and 0.7 µs."""
    price = price_row(input="3", output="15", tiers={"flex": "0.5"})
    check(lambda: spent_per_call(REQUEST, price), report, calls=106.3, c_calls=179, bytecodes=5_025)
