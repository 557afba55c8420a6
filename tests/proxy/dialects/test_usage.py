"""A usage report of the usual shape is taken in one step, and means what it means when each member is looked at."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from proxy.dialects.usage.meters import OpenAiMeter

MOST = 1000
FIGURES: st.SearchStrategy[Any] = st.sampled_from([None, 0, 1, 7, MOST, MOST + 1, -1, 1.0, True, "7", 10**30, {}, []])
DETAILS = st.one_of(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("cached_tokens", "audio_tokens", "image_tokens", "reasoning_tokens", "thinking_tokens"), FIGURES
        ),
    ),
    FIGURES,
)
TIERS: st.SearchStrategy[Any] = st.sampled_from([None, "flex", "default", "x" * 65, 'a"', 1, [], {}])
REPORTS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens"), FIGURES
        ),
        **dict.fromkeys(("prompt_tokens_details", "completion_tokens_details", "input_tokens_details"), DETAILS),
        "prompt_cache_hit_tokens": FIGURES,
    },
)
USUAL = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20, "prompt_tokens_details": {"cached_tokens": 4}}


@given(
    reports=st.lists(st.one_of(REPORTS, FIGURES.filter(lambda usage: usage is not None)), max_size=3),
    others=st.fixed_dictionaries(
        {}, optional={"service_tier": TIERS, "x_groq": st.fixed_dictionaries({"service_tier": TIERS})}
    ),
)
@example([USUAL], {})
@example([USUAL | {"completion_tokens": -1}, USUAL], {"service_tier": "flex"})
@example([USUAL, USUAL | {"prompt_tokens_details": {"cached_tokens": MOST}}], {})
@example([USUAL | {"completion_tokens_details": {"reasoning_tokens": 3}}], {"x_groq": {"service_tier": "flex"}})
@example([USUAL | {"total_tokens": 23, "completion_tokens_details": {"reasoning_tokens": 3}}], {"service_tier": "a"})
def test_one_step_reads_what_the_rules_read(reports: list[Any], others: dict[str, Any]) -> None:
    quick = OpenAiMeter(most=MOST)
    thorough = OpenAiMeter(most=MOST)
    for usage in reports:
        answer = {"usage": usage} | others
        quick.observe(answer)
        thorough.observe_usage(usage, answer)
    assert (quick.tokens, quick.details, quick.rejected) == (thorough.tokens, thorough.details, thorough.rejected)
