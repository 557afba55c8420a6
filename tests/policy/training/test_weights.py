"""Sources of weights, and which of their files are wanted."""

import pytest

from policy.training.weights import (
    BucketSource,
    FilePatterns,
    HubSource,
    UrlSource,
    Weights,
    matches,
    overlap,
    parse_source,
)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf://gpt2", HubSource("gpt2")),
        ("hf://meta-llama/Llama-3.1-8B@refs/pr/1", HubSource("meta-llama/Llama-3.1-8B", "refs/pr/1")),
        ("s3://my-bucket", BucketSource("s3", "my-bucket", "")),
        ("s3://my-bucket/a/b c/", BucketSource("s3", "my-bucket", "a/b c")),
        ("gs://my_bucket.b/a", BucketSource("gs", "my_bucket.b", "a")),
        ("r2://0123abc.my-bucket/a", BucketSource("r2", "my-bucket", "a", "0123abc")),
        ("https://example.com/m?x=1", UrlSource("https://example.com/m?x=1")),
    ],
)
def test_source_is_read(text: str, source: object) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("*.safetensors", "model.safetensors", True),
        ("*.safetensors", "original/model.safetensors", False),
        ("**/*.safetensors", "model.safetensors", True),
        ("**/*.safetensors", "a/b/model.safetensors", True),
        ("original/*", "original/params.json", True),
        ("original/*", "original/a/params.json", False),
        ("original/", "original/a/params.json", True),
        ("original/**", "original/a/params.json", True),
        ("**", "a/b", True),
        ("model-[0-9].bin", "model-1.bin", True),
        ("MODEL.bin", "model.bin", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "b/a/z", False),
    ],
)
def test_pattern_matches_within_names_unless_it_says_otherwise(pattern: str, path: str, is_match: bool) -> None:
    assert matches(path, pattern) is is_match


def test_ignored_files_are_left_out_of_the_allowed_ones() -> None:
    patterns = FilePatterns(("*.json", "*.bin"), ("b*",))
    assert [path for path in ("a.json", "b.json", "a.bin", "a.txt") if patterns.match(path)] == ["a.json", "a.bin"]
    assert FilePatterns().match("any/thing")


def test_long_pattern_costs_no_more_than_its_length() -> None:
    """A pattern that tried all ways would not come to an end."""
    assert not matches("a" * 1000, "*a" * 500 + "b")
    assert not matches("a/" * 500 + "a", "**/a/" * 200 + "b")


def test_places_that_overlap_are_found() -> None:
    assert overlap(["a/b", "a/bc", "d"]) is None
    assert overlap(["a/b", "c", "a"]) == 2


def test_query_of_a_source_is_not_shown() -> None:
    weights = Weights("https://example.com/m?sig=1", "m", "credential")
    assert weights.shown_source == "https://example.com/m"
    assert "sig" not in repr(weights)
    assert "credential" not in repr(weights)
