"""Counts what was delivered, but never more than a hard spend limit has reserved for. Pure.

What is counted here only stands in for a report that is missing, so it must not bring a bill above the limit.
"""

from typing import NamedTuple

from policy.billing import Details, Tokens
from proxy.accounting.metering import DeliveredCounter


class MostCounted(NamedTuple):
    """The tokens that a call's reservation pays for."""

    input: int
    output: int


class BoundedCounter:
    """A counter whose own figures are at most `most`. Input that the provider reported stays as it is."""

    __slots__ = ("_counter", "_most", "pending")

    def __init__(self, counter: DeliveredCounter, most: MostCounted) -> None:
        self._counter = counter
        self._most = most
        self.pending = counter.pending

    @property
    def expects_usage(self) -> bool:
        return self._counter.expects_usage

    def count(self) -> None:
        self._counter.count()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        most = self._most
        tokens = self._counter.tokens(reported_input)
        if tokens.output > most.output:
            tokens = tokens._replace(output=most.output)
        if reported_input is None and tokens.input > most.input:
            tokens = tokens._replace(input=most.input)
        return tokens

    @property
    def media(self) -> Details:
        return self._counter.media
