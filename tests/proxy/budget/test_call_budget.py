"""A governed call stays within its budget of Python calls, C calls and bytecodes. Prints them by part: `pytest -s`."""

from tests.proxy.budget.canned_worker import ANSWER, CALLERS, SLUG, canned_worker
from tests.proxy.budget.counting import check, report, spent_per_call


def test_canned_call_is_a_governed_call() -> None:
    with canned_worker() as (runner, worker):
        callers = runner.run(worker.serve(4))
        assert worker.loop.redis.takes == CALLERS * 4
        assert worker.journal.pending == 0
    body = ANSWER.partition(b"\r\n\r\n")[2].replace(b'"gpt"', b'"%b"' % SLUG.encode())
    assert all(answer.endswith(body) for caller in callers for answer in caller.answers)


def test_governed_call_stays_within_its_budget() -> None:
    check(spent_per_call, report, calls=103.5, c_calls=177, bytecodes=4_870)
