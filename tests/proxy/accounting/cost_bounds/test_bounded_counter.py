"""The counter that counts no more than a hard limit has reserved for."""

import pytest

from policy.billing import NO_DETAILS, Details, Tokens
from proxy.accounting.cost_bounds.bounded_counter import BoundedCounter, MostCounted

MOST = MostCounted(input=100, output=10)


class FakeCounter:
    """Counts these tokens, or this output beside the input that was reported."""

    expects_usage = True
    media: Details = NO_DETAILS._replace(audio_output=3)

    def __init__(self, counted: Tokens) -> None:
        self.pending: list[bytes] = []
        self.counted = counted

    def count(self) -> None:
        self.pending.clear()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        return self.counted if reported_input is None else reported_input._replace(output=self.counted.output)


@pytest.mark.parametrize(
    ("counted", "reported_input", "billed"),
    [
        (Tokens(input=100, output=10), None, Tokens(input=100, output=10)),
        (Tokens(input=101, output=11), None, Tokens(input=100, output=10)),
        (Tokens(input=1, output=11), Tokens(input=999, cached_input=5), Tokens(input=999, output=10, cached_input=5)),
    ],
)
def test_counted_figures_end_at_what_was_reserved_and_reported_ones_do_not(
    counted: Tokens, reported_input: Tokens | None, billed: Tokens
) -> None:
    assert BoundedCounter(FakeCounter(counted), MOST).tokens(reported_input) == billed


def test_all_else_is_the_counters_own() -> None:
    counter = FakeCounter(Tokens())
    bounded = BoundedCounter(counter, MOST)
    bounded.pending.append(b"x")
    assert counter.pending == [b"x"]
    bounded.count()
    assert counter.pending == []
    assert bounded.expects_usage
    assert bounded.media == counter.media
