"""How much output is expected of a call."""

import pytest

from proxy.accounting.output_estimates import CALLS_TO_TRUST, OutputEstimates


def seen(calls: int, output_tokens: int = 100) -> OutputEstimates:
    output_estimates = OutputEstimates()
    for _ in range(calls):
        output_estimates.record("g", "a/b", output_tokens)
    return output_estimates


@pytest.mark.parametrize(("cap", "expected"), [(None, 512), (40, 40), (4_000, 4_000), (0, 0)])
def test_the_cap_is_believed_until_enough_calls_were_seen(cap: int | None, expected: int) -> None:
    for calls in (0, 1, CALLS_TO_TRUST - 1):
        assert seen(calls).expected_output("g", "a/b", cap) == expected


@pytest.mark.parametrize(("cap", "expected"), [(None, 100), (40, 40), (4_000, 100)])
def test_then_the_mean_is_believed_and_the_cap_is_a_cap(cap: int | None, expected: int) -> None:
    assert seen(CALLS_TO_TRUST).expected_output("g", "a/b", cap) == expected


def test_pairs_do_not_mix() -> None:
    output_estimates = seen(50)
    assert output_estimates.expected_output("g", "a/other", None) == 512
    assert output_estimates.expected_output("other", "a/b", None) == 512


def test_the_mean_follows_a_change() -> None:
    output_estimates = seen(100_000, 1000)
    for _ in range(2_000):
        output_estimates.record("g", "a/b", 10)
    assert output_estimates.expected_output("g", "a/b", None) == 10


def test_the_pairs_that_were_called_last_are_kept() -> None:
    output_estimates = OutputEstimates(pairs_kept=2)
    for slug in ["a/1"] * 20 + ["a/2"] * 20 + ["a/1"] + ["a/3"] * 20:
        output_estimates.record("g", slug, 7)
    assert [output_estimates.expected_output("g", f"a/{n}", None) for n in (1, 2, 3)] == [7, 512, 7]
