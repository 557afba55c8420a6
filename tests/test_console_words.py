"""The console's labels are plain words: no text of its modules has one that the style replaces.

The words and their replacements are pairs of the style guide; a test of the words keeps them from coming back.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ASSETS = Path(__file__).resolve().parent.parent / "control/api/console/assets"
REPLACED = {
    r"[Rr]efuses first": "Binding",
    r"[Rr]oom again": "Resets in",
    r"Empty (in|from)\b": "Resets in, Resets at",
    r"^Figures( of |$)": "Table",
    r"\bWho( uses|\?)": "Top users",
    r"[Hh]and out": "Share usage page",
    r"\b[Mm]int(s|ed|ing)?\b": "Create, Created",
    r"^Made\b|, made\b": "Created",
    r"^Which$|^Whose$": "a noun that says what the column has",
    r"errors, (normal|raised|high)": "the per cent alone, in its colour",
}
_TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
_COMMENT = re.compile(r"^\s*(//|/?\*).*$", re.MULTILINE)


def texts_of(module: str) -> Iterator[str]:
    """The texts between quotes or backticks, those of comments aside."""
    for quoted, template in _TEXT.findall(_COMMENT.sub("", module)):
        yield quoted or template


def replaced_words(module: str) -> list[str]:
    return [
        f"{text!r}: say {better}"
        for text in texts_of(module)
        for word, better in REPLACED.items()
        if re.search(word, text)
    ]


@pytest.mark.parametrize("path", sorted(ASSETS.rglob("*.mjs")), ids=lambda path: path.name)
def test_no_label_is_a_word_that_the_style_replaces(path: Path) -> None:
    assert replaced_words(path.read_text()) == []


EXAMPLES = (
    '{ head: "Refuses first" }',
    '{ head: "Room again" }',
    '{ head: "Empty in" }',
    'h("button", {}, "Who?")',
    'openDialog("Who uses it today")',
    'actionButton("Hand out usage")',
    'form("Mint a key")',
    'announce("Minted")',
    '{ head: "Made" }',
    "`${percent} errors, normal`",
    '{ head: "Which" }',
)


@pytest.mark.parametrize("module", EXAMPLES)
def test_a_replaced_word_is_seen(module: str) -> None:
    assert replaced_words(module)


def test_comments_and_names_may_have_any_word() -> None:
    assert replaced_words('// "Mint a key"\nconst made = mint("key");') == []
