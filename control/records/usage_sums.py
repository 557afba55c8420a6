"""Sums of usage over calls, as hourly sums keep them and as reports show them. Values only."""

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

from policy.prices import CostFigures

PLAIN = 4
"""The first members of a `Usage`, which are not 0 in most sums."""
Figures = tuple[int, int, int, int, Sequence[int] | None]
"""A `Usage` as a report adds it up: its first four members, and the further ones, or None if they are all 0.

Nearly all calls have the first four alone. So the others cost nothing where there are none.
"""


class Usage(NamedTuple):
    """Sums over calls. `input` and `output` are all tokens; the others are parts of them, as in `CostFigures`.

    `uncharged_calls`: calls that do not cost `per_call`. `reasoning`: a part of the output that is priced like the
    rest of it.
    """

    calls: int = 0
    input: int = 0
    output: int = 0
    cached_input: int = 0
    uncharged_calls: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    reasoning: int = 0
    audio_input: int = 0
    image_input: int = 0
    audio_output: int = 0
    image_output: int = 0
    server_tool_calls: int = 0

    @property
    def figures(self) -> Figures:
        further = self[PLAIN:]
        return (self.calls, self.input, self.output, self.cached_input, further if any(further) else None)

    @property
    def cost_figures(self) -> CostFigures:
        return CostFigures(
            charged_calls=self.calls - self.uncharged_calls,
            input=self.input,
            output=self.output,
            cached_input=self.cached_input,
            cache_write=self.cache_write,
            cache_write_1h=self.cache_write_1h,
            audio_input=self.audio_input,
            image_input=self.image_input,
            audio_output=self.audio_output,
            image_output=self.image_output,
            server_tool_calls=self.server_tool_calls,
        )


def usage_of(figures: Figures) -> Usage:
    *plain, further = figures
    return Usage(*plain, *(further or ()))


def figures_sum(one: Figures, other: Figures) -> Figures:
    calls, input, output, cached, further = one
    more_calls, more_input, more_output, more_cached, more_further = other
    if more_further is not None:
        further = more_further if further is None else tuple(map(add, further, more_further))
    return (calls + more_calls, input + more_input, output + more_output, cached + more_cached, further)
