"""Masking of secrets in a stream."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.runner.masking import MASK, Masker, masked_forms

SMALL = st.text("ab-", min_size=4, max_size=6)


def masked(secrets: list[str], *reads: bytes) -> bytes:
    masker = Masker(masked_forms(secrets))
    return b"".join(map(masker.feed, reads)) + masker.flush()


def test_secret_that_two_reads_divide_is_masked() -> None:
    assert masked(["hunter2"], b"a hun", b"ter", b"2 b") == b"a *** b"


def test_beginning_of_a_secret_that_goes_on_otherwise_is_shown() -> None:
    assert masked(["hunter2"], b"a hun", b"dred") == b"a hundred"


def test_only_what_may_begin_a_secret_is_held_back() -> None:
    masker = Masker(masked_forms(["hunter2"]))

    assert masker.feed(b"line\nhunt") == b"line\n"
    assert masker.flush() == b"hunt"


def test_longest_of_several_secrets_is_masked_as_a_whole() -> None:
    assert masked(["token", "token-long"], b"token-lo", b"ng token") == b"*** ***"


def test_secret_within_what_may_begin_another_is_masked() -> None:
    assert masked(["XYab", "abcd"], b"XYab", b"QQ") == b"***QQ"


def test_secret_that_ends_the_stream_is_masked() -> None:
    assert masked(["abcd", "abcdef"], b"abcd") == b"***"


def test_secret_shorter_than_four_characters_is_not_masked() -> None:
    assert masked(["abc", "  x ", ""], b"abc x") == b"abc x"


def test_json_form_and_trimmed_form_of_a_secret_are_masked() -> None:
    assert masked(['pass"word\n'], b'{"p": "pass\\"word"} pass"word') == b'{"p": "***"} ***'


def test_long_lines_of_a_secret_of_several_lines_are_masked_one_by_one() -> None:
    secret = "-----BEGIN KEY-----\nQUJDREVGRw==\n}\n"

    assert masked([secret], b"| -----BEGIN KEY-----\n| QUJDREVGRw==\n| }") == b"| ***\n| ***\n| }"


def test_lines_of_a_secret_are_masked_as_json_shows_them() -> None:
    assert masked(['first "line"\nsecond é line'], rb'{"a": "first \"line\"", "b": "second \u00e9 line"}') == (
        b'{"a": "***", "b": "***"}'
    )


@given(st.lists(SMALL, max_size=3), st.lists(st.binary(max_size=4) | SMALL.map(str.encode), max_size=12))
def test_no_secret_is_shown_however_the_stream_is_read(secrets: list[str], reads: list[bytes]) -> None:
    output = masked(secrets, *reads)

    assert output == masked(secrets, b"".join(reads))
    if not secrets:
        assert output == b"".join(reads)
    assert not any(form in piece for form in masked_forms(secrets) for piece in output.split(MASK))
