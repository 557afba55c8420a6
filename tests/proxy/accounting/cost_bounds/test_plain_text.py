"""A plain conversation has the bound that a close look finds, and whatever may cost more gets the close look."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.prices import LongContext
from proxy.accounting.cost_bounds.cost_bound import cost_bound
from proxy.accounting.cost_bounds.dearest_rates import dearest_rates
from proxy.accounting.cost_bounds.plain_text import is_plain_conversation
from tests.proxy.accounting.cost_bounds.calls import CHAT, MESSAGES, RESPONSES, call, price, tokens
from tests.proxy.dialects.samples import FakeIncoming

PART = {"type": "image_url", "image_url": {"url": "https://x.test/cat"}}
CONTENTS = st.sampled_from(["", "hi", None, [PART], [{"type": "text", "text": "a"}], {"type": "file"}])
MESSAGE = st.fixed_dictionaries(
    {"role": st.just("user"), "content": CONTENTS}, optional={"images": st.just(["https://x"]), "name": st.just("n")}
)
VALUES = st.sampled_from([None, True, 3, "x", ["x"], {"n": 5}, {"max_tokens": 10**6}, [{"image": "https://x"}]])
NAMES = (
    *("system", "temperature", "stop", "seed", "user", "tools", "n", "thinking", "prediction", "extra_body", "files"),
    *("candidate_count", "input", "prompt", "max_tokens", "web_search_options", "chat_template", "partial_images"),
)
MEMBERS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2)
HEADS = st.sampled_from([FakeIncoming(()), FakeIncoming((("anthropic-beta", "context-1m"),))])
PRICES = st.sampled_from(
    [
        price(),
        price(max_input_tokens=60, max_output_tokens=40),
        price(long_context=LongContext(70, tokens(4, 15)), max_output_tokens=9),
    ]
)


@given(
    st.lists(MESSAGE, max_size=3),
    MEMBERS,
    st.sampled_from([CHAT, MESSAGES, RESPONSES]),
    HEADS,
    st.none() | st.integers(1, 100),
    PRICES,
)
def test_plain_conversation_has_the_bound_of_a_close_look(
    messages: list[Any], members: dict[str, Any], path: str, head: FakeIncoming, cap: int | None, its_price: Any
) -> None:
    question = call({"messages": messages, **members}, path, incoming=head, output_cap=cap)
    rates = dearest_rates([its_price])
    if is_plain_conversation(question.json, path):
        assert cost_bound(question, rates, 50, is_plain=True) == cost_bound(question, rates, 50)


SAID = {"model": "acme/a", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 64, "temperature": 0.5}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_ordinary_call_is_plain(path: str) -> None:
    body = SAID | ({"system": "Be brief."} if path == MESSAGES else {})
    assert is_plain_conversation(body, path)


@pytest.mark.parametrize(
    "members",
    [
        {"tools": []},
        {"n": 2},
        {"user": {"n": 2}},
        {"system": [{"type": "document"}]},
        {"messages": "hi"},
        {"messages": [{"role": "user", "content": "hi", "audio": "https://x"}]},
        {"unknown": 1},
    ],
)
def test_any_other_call_is_looked_at_closely(members: dict[str, Any]) -> None:
    assert not is_plain_conversation(SAID | members, CHAT)
