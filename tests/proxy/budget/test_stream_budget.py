"""A chunk of a stream stays within its budget of calls and bytecodes. Prints them by function: `pytest -s`."""

from tests.proxy.budget.canned_worker import CALLERS, SLUG, canned_worker
from tests.proxy.budget.counting import check
from tests.proxy.budget.stream_counting import ENDING, REQUEST, reads, report, spent_per_chunk


def test_canned_stream_is_a_governed_stream() -> None:
    with canned_worker(*reads(50)) as (runner, worker):
        callers = runner.run(worker.serve(2, REQUEST, ENDING))
        assert worker.loop.redis.takes == CALLERS * 2
        assert worker.journal.pending == 0
    for caller in callers:
        assert all(b'"usage"' not in answer and SLUG.encode() not in answer for answer in caller.answers)
        assert all(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for answer in caller.answers)


def test_chunk_stays_within_its_budget() -> None:
    check(spent_per_chunk, report, calls=4.2, c_calls=7.6, bytecodes=245)
