"""The estimated output tokens of a call."""

import pytest

from proxy.accounting.output_estimates import CALLS_TO_TRUST, OutputEstimates


def seen(calls: int, output_tokens: int = 100) -> OutputEstimates:
    output_estimates = OutputEstimates()
    for _ in range(calls):
        output_estimates.record("g", "a/b", output_tokens)
    return output_estimates


@pytest.mark.parametrize(("cap", "expected"), [(None, 512), (40, 40), (4_000, 4_000), (0, 0)])
def test_cap_is_the_estimate_until_enough_calls_are_recorded(cap: int | None, expected: int) -> None:
    for calls in (0, 1, CALLS_TO_TRUST - 1):
        assert seen(calls).expected_output("g", "a/b", cap) == expected


@pytest.mark.parametrize(("cap", "expected"), [(None, 100), (40, 40), (4_000, 100)])
def test_mean_is_the_estimate_afterwards_limited_by_the_cap(cap: int | None, expected: int) -> None:
    assert seen(CALLS_TO_TRUST).expected_output("g", "a/b", cap) == expected


def test_groups_and_slugs_have_separate_means() -> None:
    output_estimates = seen(50)
    assert output_estimates.expected_output("g", "a/other", None) == 512
    assert output_estimates.expected_output("other", "a/b", None) == 512


def test_mean_adapts_to_new_outputs() -> None:
    output_estimates = seen(100_000, 1000)
    for _ in range(2_000):
        output_estimates.record("g", "a/b", 10)
    assert output_estimates.expected_output("g", "a/b", None) == 10


def test_least_recently_called_pairs_are_evicted() -> None:
    output_estimates = OutputEstimates(pairs_kept=2)
    for slug in ["a/1"] * 20 + ["a/2"] * 20 + ["a/1"] + ["a/3"] * 20:
        output_estimates.record("g", slug, 7)
    assert [output_estimates.expected_output("g", f"a/{n}", None) for n in (1, 2, 3)] == [7, 512, 7]
