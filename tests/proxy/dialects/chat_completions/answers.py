"""Answers of the middle that Chat Completions can say, in the form in which it says them."""

from hypothesis import strategies as st

from policy.billing import Details, Tokens
from proxy.dialects.middle.answer import END, MAX_TOKENS, REFUSED, Answer
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, Request, Text, ToolCall
from proxy.dialects.middle.stops import stop_of
from tests.fakes.seals import seals_of

SLUG = "acme/fast"
CREATED = 1_700_000_000
TOKENS = Tokens(input=90, output=7, cached_input=80)


def context(*, include_usage: bool = True) -> AnswerContext:
    return AnswerContext(SLUG, Request([], include_usage=include_usage), CREATED, seals_of())


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
NAMES = st.sampled_from(["weather", "now"])
ARGUMENTS = st.dictionaries(TEXTS, TEXTS, max_size=2).map(repr)
REASONING = st.one_of(
    st.builds(lambda text: Reasoning(text, "chat_completions", {"reasoning_content": text}), TEXTS),
    st.builds(
        lambda text: Reasoning(
            text, "chat_completions", {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": text}]}
        ),
        TEXTS,
    ),
)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """Reasoning, then text or a refusal, then calls: the order of the members of a message."""
    parts: list[AnswerPart] = []
    if draw(st.booleans()):
        parts.append(draw(REASONING))
    text_part = draw(st.none() | st.builds(Text, TEXTS) | st.builds(Refusal, TEXTS))
    is_refusal = isinstance(text_part, Refusal)
    if text_part is not None:
        parts.append(text_part)
    for number in range(0 if is_refusal else draw(st.integers(0, 3))):
        extra = draw(st.none() | st.just({"google": {"thought_signature": "c2ln"}}))
        parts.append(ToolCall(f"c{number}", draw(NAMES), draw(ARGUMENTS), draw(st.booleans()) and not extra, extra))
    stop = stop_of(REFUSED if is_refusal else draw(st.sampled_from([END, MAX_TOKENS])), None, parts)
    details = Details(reasoning=draw(st.integers(0, 5)), cache_write=draw(st.integers(0, 5)))
    return Answer("chatcmpl-1", draw(st.integers(1, 9)), parts, stop, None, details)


ANSWERS = answers()
