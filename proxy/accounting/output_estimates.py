"""Estimates how much output a call of (group, slug) will bring, from the calls that this worker has seen.

Pure. An estimate only decides how much is reserved; the actual tokens are charged in the end.

See docs/reference/limits.md#estimates.
"""

from dataclasses import dataclass

UNKNOWN_OUTPUT = 512
"""The estimate for a call without a cap while too few calls have been seen."""
CALLS_TO_TRUST = 16
_MEMORY_CALLS = 256
"""Each call counts for at least a 256th of the mean, so the mean follows changes."""
_PAIRS_KEPT = 10_000


@dataclass(slots=True)
class _Mean:
    calls: int = 0
    output: float = 0.0


class OutputEstimates:
    """Running means for the most recently called pairs."""

    def __init__(self, pairs_kept: int = _PAIRS_KEPT) -> None:
        self._means: dict[tuple[str, str], _Mean] = {}
        self._pairs_kept = pairs_kept

    def expected_output(self, group_id: str, slug: str, cap: int | None) -> int:
        """Tokens to reserve for the answer. `cap`: the largest of the caller's own output caps; None: none given."""
        mean = self._means.get((group_id, slug))
        if mean is None or mean.calls < CALLS_TO_TRUST:
            return UNKNOWN_OUTPUT if cap is None else cap
        expected = round(mean.output)
        return expected if cap is None or expected < cap else cap

    def record(self, group_id: str, slug: str, output_tokens: int) -> None:
        """Add a settled call, with the output that its provider reported."""
        pair = (group_id, slug)
        means = self._means
        mean = means.get(pair)
        if mean is None or len(means) >= self._pairs_kept:  # only then does it matter which was called last
            mean = self._move_to_end(pair)
        calls = mean.calls = mean.calls + 1
        mean.output += (output_tokens - mean.output) / (calls if calls < _MEMORY_CALLS else _MEMORY_CALLS)

    def _move_to_end(self, pair: tuple[str, str]) -> _Mean:
        """The mean, as the last to be forgotten. A new pair takes the first one's place where there is no room."""
        means = self._means
        mean = means.pop(pair, None)
        if mean is None:
            mean = _Mean()
            if len(means) >= self._pairs_kept:
                del means[next(iter(means))]
        means[pair] = mean
        return mean
