"""A usage report of the usual shape is taken in one step, and means what it means when each member is looked at."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from proxy.dialects.usage import OpenAiMeter

MOST = 1000
FIGURES: st.SearchStrategy[Any] = st.sampled_from([None, 0, 1, 7, MOST, MOST + 1, -1, 1.0, True, "7", 10**30, {}, []])
DETAILS = st.one_of(st.fixed_dictionaries({}, optional={"cached_tokens": FIGURES}), FIGURES)
REPORTS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"), FIGURES),
        **dict.fromkeys(("prompt_tokens_details", "input_tokens_details"), DETAILS),
        "prompt_cache_hit_tokens": FIGURES,
    },
)
USUAL = {"prompt_tokens": 12, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}}


@given(reports=st.lists(st.one_of(REPORTS, FIGURES.filter(lambda usage: usage is not None)), max_size=3))
@example([USUAL])
@example([USUAL | {"completion_tokens": -1}, USUAL])
@example([USUAL, USUAL | {"prompt_tokens_details": {"cached_tokens": MOST}}])
def test_one_step_reads_what_the_rules_read(reports: list[Any]) -> None:
    quick = OpenAiMeter(most=MOST)
    thorough = OpenAiMeter(most=MOST)
    for usage in reports:
        quick.observe({"usage": usage})
        thorough.observe_usage(usage)
    assert (quick.tokens, quick.rejected) == (thorough.tokens, thorough.rejected)
