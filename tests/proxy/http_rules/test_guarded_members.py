"""Members that the proxy acts on: a wrong JSON type, or a name that another server could confuse with one, is a 400."""

import sys
import unicodedata
from collections import defaultdict
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.accounting.call_bound import ANSWER_COUNTS, OUTPUT_CAPS
from proxy.http_rules import guarded_members
from proxy.refusals import MalformedRequestError
from tests.fakes.directory import SLUG
from tests.fakes.path import PathRig
from tests.fakes.wire import FakeIncoming

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages")
COUNTS = (*ANSWER_COUNTS, *OUTPUT_CAPS)
NAMES = ("model", "stream", "stream_options", "metadata", *COUNTS)


def refusal(body: dict[str, Any]) -> str:
    with pytest.raises(MalformedRequestError) as error:
        guarded_members.check_members(body)
    return str(error.value)


@pytest.mark.parametrize("value", [1, 0, 1.0, "true", "false", "yes", "no", "0", "", [], {}])
@pytest.mark.parametrize("where", ["stream", "stream_options.include_usage"])
async def test_stream_of_a_wrong_type_is_a_400_that_names_it(where: str, value: object) -> None:
    outer, _, inner = where.partition(".")
    for path in PATHS:
        body = {"model": SLUG, "messages": [], outer: {inner: value} if inner else value}
        rig = PathRig()
        outgoing = await rig.serve(FakeIncoming(path).saying(body))
        assert outgoing.status == 400
        assert outgoing.json["error"] == f"{where} must be true or false"
        assert not rig.upstream.calls


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [1.0, 1e30, "1", True, [], {}])
def test_count_that_is_not_an_integer_is_refused(name: str, value: object) -> None:
    assert refusal({name: value}).startswith(f"{name} must be a whole number")


@pytest.mark.parametrize("name", ["metadata", "stream_options"])
@pytest.mark.parametrize("value", ["text", 0, False, []])
def test_object_member_of_a_wrong_type_is_refused(name: str, value: object) -> None:
    assert refusal({name: value}) == f"{name} must be a JSON object"


@pytest.mark.parametrize(
    ("body", "cap"),
    [
        ({"max_tokens": 1, "max_completion_tokens": 100, "max_output_tokens": 9, "n": 500}, 100),
        ({"max_tokens": None, "max_output_tokens": 0}, None),
        ({"max_tokens": 1, "n_predict": -1}, None),
        ({"max_tokens": 1, "max_new_tokens": 32_000}, 32_000),
        ({"max_tokens": -1}, None),
        ({"messages": []}, None),
    ],
)
def test_largest_output_cap_is_returned(body: dict[str, Any], cap: int | None) -> None:
    assert guarded_members.check_members(body) == cap


def test_null_and_right_types_pass() -> None:
    guarded_members.check_members(dict.fromkeys(NAMES))
    guarded_members.check_members({"stream_options": {"include_usage": None}})
    right = {"stream": False, "metadata": {"Model": 1}, "n": 2, "max_tokens": 0, "messages": "the vendor's to say"}
    guarded_members.check_members(right | {"stream_options": {"include_usage": True, "x": {"Include_usage": 1}}})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Model", "model"),
        ("MAX_TOKENS", "max_tokens"),
        ("ſtream", "stream"),
        ("ſtream_optionſ", "stream_options"),
        ("stream_optıons", "stream_options"),
        ("stream_optİons", "stream_options"),
        ("\uff4d\uff4f\uff44\uff45\uff4c", "model"),
        ("max\uff3ftokens", "max_tokens"),
        ("𝐦odel", "model"),
        ("N", "n"),
    ],
)
async def test_lookalike_name_is_a_400_that_gives_the_right_spelling(name: str, meant: str) -> None:
    rig = PathRig()
    outgoing = await rig.serve(FakeIncoming().saying({"model": SLUG, "messages": [], "x": 1, name: None}))
    assert (outgoing.status, outgoing.json["error"]) == (400, f"{name} must be spelled {meant}")
    assert not rig.upstream.calls


@pytest.mark.parametrize("name", ["Include_Usage", "include_uſage", "\uff49nclude_usage"])
def test_lookalike_name_in_stream_options_is_refused(name: str) -> None:
    assert refusal({"stream_options": {name: True}}).endswith("must be spelled stream_options.include_usage")


def test_more_members_than_the_bound_are_refused() -> None:
    names = dict.fromkeys(f"é{number}" for number in range(1_001))
    assert refusal(names) == "the body holds more than 1000 members"
    assert refusal({"stream_options": names}) == "stream_options holds more than 1000 members"
    names.popitem()
    guarded_members.check_members(names)


def test_other_names_pass() -> None:
    guarded_members.check_members(
        {"models": 1, "Messages": 1, "model ": 1, "a\nmodel": 1, "model\n": 1, "m\u00f6del": 1, "x" * 10**6: 1}
    )


@cache
def lookalikes() -> dict[str, list[str]]:
    """Return, per letter of the guarded names, the characters that a common comparison of text equates with it."""
    letters = set("".join((*NAMES, "include_usage")))
    characters = defaultdict(list)
    for point in range(sys.maxunicode + 1):
        char = chr(point)
        plain = unicodedata.normalize("NFKC", char)
        ways = {char.lower(), char.upper().lower(), char.casefold(), plain, plain.lower(), plain.casefold()}
        for letter in letters & ways:
            characters[letter].append(char)
    return characters


@given(st.data())
def test_any_mixture_of_lookalikes_is_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from((*NAMES, "include_usage")))
    lookalike = "".join(data.draw(st.sampled_from(lookalikes()[letter])) for letter in name)
    others = data.draw(
        st.dictionaries(st.text(max_size=6).filter(lambda text: text.casefold() not in NAMES), st.none())
    )
    body = others | {lookalike: None}
    if lookalike == name:
        guarded_members.check_members({lookalike: None})
    elif name == "include_usage":
        assert "stream_options.include_usage" in refusal({"stream_options": body})
    else:
        assert "must be spelled" in refusal(body)


@given(st.dictionaries(st.text(alphabet="abcdelmnostru_\n", max_size=12), st.none()))
def test_names_in_lower_case_ascii_are_never_refused(body: dict[str, None]) -> None:
    guarded_members.check_members(body)
