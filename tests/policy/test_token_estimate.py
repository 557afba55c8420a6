"""Token estimates without a vocabulary are within 0.6 to 1.7 times the count of `o200k_base`.

The counts in `token_counts.json` were made with npm's gpt-tokenizer 4.0.0, which holds that vocabulary.
"""

import json
from pathlib import Path
from time import process_time

import pytest

from policy.token_estimate import SAMPLE_CHARACTERS, TOKEN, sample_of, tokens_of, weight_of

FIXTURES = json.loads((Path(__file__).parent / "token_counts.json").read_bytes())
LEAST = 0.6
MOST = 1.7


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture["name"])
def test_a_text_estimate_is_within_the_band(fixture: dict[str, object]) -> None:
    counted = tokens_of(weight_of(str(fixture["text"])))
    assert LEAST <= counted / int(str(fixture["o200k_base"])) <= MOST


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture["name"])
def test_an_estimate_from_small_pieces_is_within_the_band(fixture: dict[str, object]) -> None:
    """A stream arrives as deltas, and several of them are weighed together."""
    text = str(fixture["text"])
    weight = sum(weight_of(text[at : at + 60]) for at in range(0, len(text), 60))
    assert LEAST <= tokens_of(weight) / int(str(fixture["o200k_base"])) <= MOST


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("Hello", 1), ("Hello there", 2), ("\n", 1), ("é", 1)])
def test_very_short_texts_have_their_exact_count(text: str, tokens: int) -> None:
    assert tokens_of(weight_of(text)) == tokens


def test_a_lone_surrogate_has_a_weight() -> None:
    assert weight_of("\ud83d") > 0


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture["name"])
def test_a_sample_approximates_the_weight_of_long_texts(fixture: dict[str, object]) -> None:
    text = str(fixture["text"])
    texts = [text * 40, text, "x", text * (200_000 // len(text))]
    sample = sample_of(texts)
    assert sample.size == sum(map(len, texts))
    assert len(sample.text) <= 1.1 * SAMPLE_CHARACTERS
    assert sample.weight == pytest.approx(sum(map(weight_of, texts)), rel=0.1)


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture["name"])
def test_an_estimate_from_escaped_json_strings_is_within_the_band(fixture: dict[str, object], ascii_only: bool) -> None:
    times = 100
    string = json.dumps(str(fixture["text"]) * times, ensure_ascii=ascii_only)[1:-1].encode()
    counted = tokens_of(sample_of([string]).weight)
    assert LEAST <= counted / (int(str(fixture["o200k_base"])) * times) <= MOST


def test_a_sample_of_short_texts_holds_all_of_them() -> None:
    assert sample_of(["one", memoryview(b"two"), "three"]).text == "one two three"
    assert sample_of(["one", "two"]).weight == 2 * TOKEN
    assert (sample_of([]).weight, sample_of([""]).weight) == (0, 0)


@pytest.mark.parametrize("unit", ["a", "A", "aA", "7", "!", " ", "\n", "é", "ж", "短", "\U0001f600", "ກ"])
def test_cpu_time_grows_linearly_with_length_for_any_text(unit: str) -> None:
    """Ten times the text takes about ten times the CPU time, whatever the characters."""
    small = unit * 50_000
    large = unit * 500_000
    assert min(_cpu_s(large) for _ in range(3)) < 40 * max(min(_cpu_s(small) for _ in range(5)), 1e-5)


def _cpu_s(text: str) -> float:
    began = process_time()
    weight_of(text)
    return process_time() - began
