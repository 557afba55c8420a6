"""A chunk of a stream stays within its budget of Python calls. Prints them by function: `pytest -s`."""

from tests.proxy.budget.canned_worker import CALLERS, SLUG, canned_worker
from tests.proxy.budget.stream_counting import ENDING, REQUEST, calls_by_function, reads, report

MOST_CALLS = 4.2
"""Of the connection, relay, reader and the caller's exchange, and a fraction for what is put off."""


def test_canned_stream_is_a_governed_stream() -> None:
    with canned_worker(*reads(50)) as (runner, worker):
        callers = runner.run(worker.serve(2, REQUEST, ENDING))
        assert worker.loop.redis.takes == CALLERS * 2
        assert worker.journal.pending == 0
    for caller in callers:
        assert all(b'"usage"' not in answer and SLUG.encode() not in answer for answer in caller.answers)
        assert all(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for answer in caller.answers)


def test_python_calls_of_a_chunk() -> None:
    calls = calls_by_function()
    print(f"\n{report(calls)}")
    assert sum(calls.values()) <= MOST_CALLS
