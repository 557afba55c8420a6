"""A call with a 400 kB prompt stays within its budget of calls, bytecodes and copies. Prints them: `pytest -s`."""

import tracemalloc

from tests.proxy.budget.canned_worker import CALLERS, canned_worker, request_of
from tests.proxy.budget.counting import check, report, spent_per_call

PROMPT = b"What does the quick brown fox do? What does the quick "
TIMES = 7400
MOST_COPIES = 2.0
"""Copies of the prompt that one call holds at the same time, canned wires included."""


def test_prompt_reaches_the_upstream() -> None:
    request = request_of(PROMPT * TIMES)
    with canned_worker() as (runner, worker):
        runner.run(worker.serve(3, request))
        assert worker.loop.redis.takes == CALLERS * 3
        _, _, body = worker.egress.latest.partition(b"\r\n\r\n")
    assert body == request.partition(b"\r\n\r\n")[2].replace(b'"acme/chat"', b'"gpt"', 1)


def test_prompt_stays_within_its_budget() -> None:
    request = request_of(PROMPT * TIMES)
    # A C call more may search the whole prompt once more.
    check(lambda: spent_per_call(request), report, calls=136, c_calls=224.5, bytecodes=5_750)


def test_copies_of_a_prompt() -> None:
    request = request_of(PROMPT * TIMES)
    with canned_worker() as (runner, worker):
        runner.run(worker.serve(3, request))
        tracemalloc.start()
        try:
            runner.run(worker.serve(3, request))
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    copies = peak_bytes / len(request) / CALLERS
    print(f"\n{copies:.2f} copies of the prompt per call at the same time")
    assert copies <= MOST_COPIES
