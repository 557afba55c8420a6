"""The pauses between attempts, and when the launcher gives up."""

from launcher.start_attempts import FIRST_DELAY_S, LONGEST_DELAY_S, MAX_FAILED_STARTS, STEADY_S, StartAttempts


def test_pauses_double_up_to_the_longest() -> None:
    attempts = StartAttempts()
    pauses = []
    for _ in range(9):
        attempts.start_failed(100)
        pauses.append(attempts.not_before - 100)
    assert pauses[:4] == [FIRST_DELAY_S, FIRST_DELAY_S * 2, FIRST_DELAY_S * 4, FIRST_DELAY_S * 8]
    assert pauses[-1] == LONGEST_DELAY_S


def test_five_failed_starts_in_a_row_are_enough() -> None:
    attempts = StartAttempts()
    for _ in range(MAX_FAILED_STARTS - 1):
        attempts.start_failed(0)
    states = [attempts.is_exhausted]
    attempts.start_succeeded()
    attempts.start_failed(0)
    states.append(attempts.is_exhausted)
    for _ in range(MAX_FAILED_STARTS - 1):
        attempts.start_failed(0)
    states.append(attempts.is_exhausted)
    attempts.reset()
    assert [*states, attempts.is_exhausted] == [False, False, True, False]
    assert attempts.not_before == 0.0


def test_crashes_that_follow_closely_delay_more_each_time() -> None:
    attempts = StartAttempts()
    attempts.serving_failed(0, 1)
    attempts.start_succeeded()
    attempts.serving_failed(0, 1)
    assert attempts.not_before == 2 * FIRST_DELAY_S
    attempts.serving_failed(0, STEADY_S)
    assert attempts.not_before == FIRST_DELAY_S
    assert not attempts.is_exhausted
