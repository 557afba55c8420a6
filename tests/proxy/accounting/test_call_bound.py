"""The most that a call can cost: from the structure of its body, in every dialect, whatever its callers write."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.billing import MAX_COUNT
from proxy.accounting import call_bound
from proxy.accounting.call_bound import (
    EDITED_PICTURE_TOKENS,
    FILE_TOKENS,
    MOST_PARTS,
    PICTURE_TOKENS,
    SOUND_TOKENS,
    TOOLS_TOKENS,
    answers,
    most_input,
)
from proxy.json_text.large_json import parse_with_placeholders
from tests.proxy.budget.counting import Counts, counting_calls

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PICTURE_URL = {"type": "image_url", "image_url": {"url": "https://x.test/cat"}}


def beyond_bytes(body: dict[str, Any]) -> int:
    return most_input(body, 0, None)


def asking(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


@pytest.mark.parametrize(
    ("body", "path", "count"),
    [
        ({}, CHAT, 1),
        ({"n": 128}, CHAT, 128),
        ({"n": 3, "best_of": 5}, COMPLETIONS, 15),
        ({"n": 0}, CHAT, 1),
        ({"n": -5}, CHAT, 1),
        ({"n": None, "best_of": 2}, COMPLETIONS, 2),
        ({"n": 2**63}, CHAT, MAX_COUNT),
        ({"prompt": ["a", "b", "c"], "n": 2}, COMPLETIONS, 6),
        ({"prompt": [[1, 2], [3]]}, COMPLETIONS, 2),
        ({"prompt": [1, 2, 3]}, COMPLETIONS, 1),
        ({"prompt": []}, COMPLETIONS, 1),
        ({"prompt": ["a", "b"]}, "/v1/images/generations", 1),
    ],
)
def test_answers_are_n_times_best_of_times_the_prompts_of_a_list(body: dict[str, Any], path: str, count: int) -> None:
    assert answers(body, path) == count


@pytest.mark.parametrize(
    "text", ["plain", "ราคาเท่าไร" * 50, "😀" * 80, "ﷺ", "\x00\x1f", 'quotes " and \\', "a" * 40_000]
)
@pytest.mark.parametrize("escaped", [True, False])
def test_text_counts_a_token_per_byte_at_least(text: str, escaped: bool) -> None:
    raw = json.dumps(asking({"type": "text", "text": text}), ensure_ascii=escaped).encode()
    parsed, outline = parse_with_placeholders(raw) or (None, None)
    assert parsed is not None
    assert most_input(parsed, len(raw), outline) == len(raw) >= len(text.encode())


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (PICTURE_URL, PICTURE_TOKENS),
        ({"image_url": {"url": "https://x.test/cat"}}, PICTURE_TOKENS),
        ({"type": "text", "text": "", "image_url": "https://x.test/cat"}, PICTURE_TOKENS),
        ({"type": "input_image", "image_url": "https://x.test/cat"}, PICTURE_TOKENS),
        ({"type": "image", "source": {"type": "url", "url": ""}}, PICTURE_TOKENS),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, SOUND_TOKENS),
        ({"type": "input_audio", "input_audio": {"data": "https://x.test/talk"}}, FILE_TOKENS),
        ({"type": "input_audio", "input_audio": "https://x.test/talk"}, FILE_TOKENS),
        ({"type": "audio_url", "audio_url": {"url": "https://x.test/talk"}}, FILE_TOKENS),
        ({"audio_url": {"url": "HTTPS://x.test/talk"}}, FILE_TOKENS),
        ({"type": "audio_url", "audio_url": {"url": "data:audio/wav;"}}, SOUND_TOKENS),
        ({"role": "assistant", "audio": {"id": "audio_1"}}, SOUND_TOKENS),
        ({"type": "file", "file": {"file_id": "f"}}, FILE_TOKENS),
        ({"type": "input_file", "file_url": "https://x.test/book"}, FILE_TOKENS),
        ({"type": "document", "source": {"type": "url", "url": "https://x.test/book"}}, FILE_TOKENS),
        ({"type": "video_url", "video_url": {"url": "https://x.test/film"}}, FILE_TOKENS),
        ({"type": "document", "source": {"type": "text", "data": "words"}}, 0),
        ({"type": "document", "source": {"type": "content", "content": [PICTURE_URL]}}, PICTURE_TOKENS),
        ({"type": "tool_result", "tool_use_id": "t", "content": [PICTURE_URL, PICTURE_URL]}, 2 * PICTURE_TOKENS),
        ({"type": "text", "text": "the image_url of a file"}, 0),
        ({"type": "tool_use", "id": "t", "name": "read", "input": {"file": "a", "image_url": "b"}}, 0),
        ({"type": ["image_url"]}, 0),
        ({"type": "image_url", "image_url": {}, "source": {"type": "text"}}, PICTURE_TOKENS),
        ("image_url", 0),
        (None, 0),
        (7, 0),
    ],
)
def test_part_counts_its_figure(part: Any, tokens: int) -> None:
    # A picture's URL counts no bytes in Messages, where it cannot be told from data.
    assert abs(beyond_bytes(asking(part)) - tokens) <= len("https://x.test/cat")


@pytest.mark.parametrize(
    ("tokens", "most"),
    [
        (2833 + 8 * 5667, PICTURE_TOKENS),  # gpt-4o-mini: a base, and 512 px tiles of 2048 x 768 px
        (30_000 * 12 // 10, PICTURE_TOKENS),  # GPT-5.6 and 6: patches, and their multiplier
        (1536 * 246 // 100, PICTURE_TOKENS),  # gpt-5-nano
        (4784, PICTURE_TOKENS),  # Claude, high resolution
        (2240, PICTURE_TOKENS),  # Gemini, ultra high
        (16_384, PICTURE_TOKENS),  # Qwen-VL: 12 845 056 pixels, 28 x 28 a token
        (65 + 4 * 129 + 6240, EDITED_PICTURE_TOKENS),  # GPT Image 1, input fidelity high
        (1500 * 10, SOUND_TOKENS),  # gpt-4o-transcribe: seconds, and tokens of one
        (3 * 3600 * 25 // 2, SOUND_TOKENS),  # Voxtral
        (1_048_576, FILE_TOKENS),  # Gemini: its context; 9.5 hours of sound or an hour of video fill it
        (1_050_000, FILE_TOKENS),  # GPT-5.4: its context
        (1_000_000, FILE_TOKENS),  # Claude: its context; 600 pages of a PDF fill it
        (804, TOOLS_TOKENS),  # Claude Opus 4.7: the prompt for tools
    ],
)
def test_figures_are_at_least_what_vendors_document(tokens: int, most: int) -> None:
    assert tokens <= most


def test_long_url_of_a_recording_counts_as_a_file_and_its_data_does_not() -> None:
    for value, figure in (("https://x.test/" + "a" * 200_000, FILE_TOKENS), ("A" * 200_000, SOUND_TOKENS)):
        raw = orjson.dumps(asking({"type": "input_audio", "input_audio": {"data": value}}))
        parsed, outline = parse_with_placeholders(raw) or (None, None)
        assert outline is not None
        assert parsed is not None
        assert most_input(parsed, len(raw), outline) == len(raw) + figure


def test_parts_of_responses_count_in_input_and_in_tool_output() -> None:
    picture = {"type": "input_image", "image_url": "https://x.test/cat"}
    screenshot = {"type": "computer_screenshot", "image_url": "https://x.test/page"}
    items = [
        {"role": "user", "content": [picture]},
        {"type": "function_call_output", "call_id": "c", "output": [picture]},
        {"type": "computer_call_output", "call_id": "d", "output": screenshot},
        {"type": "function_call_output", "call_id": "e", "output": "text"},
    ]
    assert beyond_bytes({"input": items}) == 3 * PICTURE_TOKENS


def test_pictures_beside_content_count() -> None:
    assert beyond_bytes({"prompt": "a", "images": ["u", "v"], "mask": {"image_url": "w"}}) == 3 * PICTURE_TOKENS


def test_data_of_a_picture_counts_by_its_figure_and_that_of_a_file_by_its_bytes_too() -> None:
    data = "A" * 60_000
    for part, counted in (
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}, False),
        ({"type": "input_image", "image_url": f"data:image/png;base64,{data}"}, False),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}, False),
        ({"type": "file", "file": {"file_data": f"data:text/plain;base64,{data}"}}, True),
        ({"type": "image_url", "image_url": {"url": f"data:text/plain;base64,{data}"}}, True),
        ({"type": "text", "text": data, "image_url": "x"}, True),
    ):
        raw = orjson.dumps(asking(part))
        parsed, outline = parse_with_placeholders(raw) or (None, None)
        assert parsed is not None
        beside = most_input(parsed, len(raw), outline) - max(PICTURE_TOKENS, call_bound._figure(part))
        assert (beside > len(data)) == counted
        assert most_input(parsed, len(raw), outline) == most_input(orjson.loads(raw), len(raw), None)


def test_tools_add_what_vendors_add_for_them() -> None:
    assert beyond_bytes({"tools": [{}]}) == beyond_bytes({"functions": [{}]}) == TOOLS_TOKENS
    assert beyond_bytes({"tools": [], "functions": None}) == 0


def test_a_price_may_replace_the_figures() -> None:
    assert most_input(asking(PICTURE_URL, {"type": "file", "file": {}}), 100, None, 7) == 114


@pytest.mark.parametrize(
    "part",
    [PICTURE_URL, {"file_id": 1}, {"content": []}, {"output": {}}, {"type": "input_image", "image_url": "data:image/"}],
)
def test_parts_beyond_a_number_count_as_files_without_a_look(part: Any) -> None:
    counts = Counts()
    with counting_calls(counts):
        most = beyond_bytes(asking(*[part] * 2 * MOST_PARTS))
    assert most >= 2 * MOST_PARTS * FILE_TOKENS
    assert counts.calls["proxy/accounting/call_bound.py", "_figure"] <= MOST_PARTS


NAMES = ("type", "content", "output", "source", "image_url", "url", "data", "file", "role", "image", "document", "text")
MEMBERS = ("messages", "input", "system", "prompt", "images", "tools", "n", "best_of")
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.sampled_from(NAMES)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)),
    max_leaves=20,
)


@given(
    st.dictionaries(st.sampled_from(["messages", "input", "system", "prompt", "images", "tools", "n", "best_of"]), JSON)
)
def test_any_json_has_a_bound_that_is_no_less_than_its_text(body: dict[str, Any]) -> None:
    assert most_input(body, 1_000, None) >= 1_000 - sum(map(len, NAMES))
    assert 1 <= answers(body, COMPLETIONS) <= MAX_COUNT
