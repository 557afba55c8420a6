"""How many tokens a text is, where nobody reported it: counted from its bytes and scripts, without a vocabulary.

0.6 to 1.7 times what `o200k_base` counts, in prose of any common script, in code and in JSON (decision 0012). Linear,
and additive: the weights of a text's parts add up to the text's, so that a stream is weighed as it comes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

IMAGE_TOKENS = 765
"""An image in a request, whatever its size: what 1024 by 1024 pixels cost at full detail."""
DOCUMENT_TOKENS = 3000
"""A document or a video in a request: two pages of a PDF, each as text and as an image."""
AUDIO_TOKENS = 600
"""A recording in a request: one minute."""

TOKEN = 100
"""Weights are hundredths of a token."""
SAMPLE_CHARACTERS = 8 << 10
SLICE_CHARACTERS = 256
"""Of a text above the sample's size, slices at equal distances are weighed."""

_LETTER, _CAPITAL, _DIGIT, _MARK, _SPACE = b"aA0. "
_CAPITAL_THEN_LETTER = b"Aa"
_RUNS = (
    (_CAPITAL_THEN_LETTER, b"a"),
    # A word takes one token for each six letters; two marks take one, three digits, three capitals.
    *((b"aaaaaa", b"w"), (b"aaa", b"a"), (b"aa", b"a"), (b"aa", b"a")),
    *((b"AAA", b"w"), (b"AA", b"A"), (b"000", b"w"), (b"00", b"0"), (b"..", b"w")),
)
"""Each run of characters of one class becomes as many bytes as it takes tokens: replaced in this order."""

_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_RARE = re.compile("[\u0b00-\u0b7f\u0e80-\u0eff]")
_RARE_WEIGHT = 110
"""What a letter of Odia or Lao weighs more than one of the script with which it shares 256 code points."""

_BY_BLOCK: Mapping[range, int] = {
    range(0x01, 0x03): 45,  # letters of Latin words, beside the runs
    range(0x03, 0x04): 40,  # Greek
    range(0x04, 0x05): 35,  # Cyrillic
    range(0x05, 0x06): 43,  # Armenian, Hebrew
    range(0x06, 0x09): 40,  # Arabic
    range(0x09, 0x0A): 38,  # Devanagari, Bengali
    range(0x0A, 0x0B): 48,  # Gurmukhi, Gujarati
    range(0x0B, 0x0C): 38,  # Tamil
    range(0x0C, 0x0E): 50,  # Telugu, Kannada, Malayalam, Sinhala
    range(0x0E, 0x0F): 50,  # Thai
    range(0x0F, 0x10): 110,  # Tibetan
    range(0x10, 0x11): 43,  # Burmese, Georgian
    range(0x12, 0x17): 210,  # Ethiopic, Cherokee
    range(0x17, 0x18): 60,  # Khmer
    range(0x1E, 0x1F): 25,  # Vietnamese, beside the runs
    range(0x20, 0x21): 80,  # punctuation
    range(0x34, 0xA0): 85,  # Han
    range(0xAC, 0xD8): 75,  # Hangul
    range(0xD8, 0xE0): 90,  # half a surrogate pair: emoji and rare letters
}
_OTHER_WEIGHT = 100


def _weights() -> bytes:
    """By the high byte of a UTF-16 unit: what one character there weighs. Latin-1 is not weighed so, but in runs."""
    table = bytearray([_OTHER_WEIGHT]) * 256
    table[0] = 0
    for blocks, weight in _BY_BLOCK.items():
        table[blocks.start : blocks.stop] = bytes([weight]) * len(blocks)
    return bytes(table)


def _class_of(character: str) -> int:
    if character.isdecimal():
        return _DIGIT
    if character.isalpha():
        return _CAPITAL if character.isupper() else _LETTER
    if character == "\n" or (character.isprintable() and character != " "):
        return _MARK
    return _SPACE


_WEIGHTS = _weights()
_CLASSES = bytes(_class_of(chr(code)) for code in range(256))


def weight_of(text: str) -> int:
    """What a text weighs, in hundredths of a token."""
    runs = text.encode("latin-1", "ignore").translate(_CLASSES)
    for run, tokens in _RUNS:
        runs = runs.replace(run, tokens)
    weight = (len(runs) - runs.count(_SPACE)) * TOKEN
    if text.isascii():
        return weight
    blocks = text.encode("utf-16-be", "surrogatepass")[::2]
    if b"\x0b" in blocks or b"\x0e" in blocks:
        weight += len(_RARE.findall(text)) * _RARE_WEIGHT
    return weight + sum(blocks.translate(_WEIGHTS))


@dataclass(frozen=True, slots=True)
class Sample:
    """Some texts, or slices of them where they are long together. `size`: the characters of all."""

    text: str
    size: int

    @property
    def weight(self) -> int:
        """What all of the texts weigh, as the sample tells."""
        return weight_of(self.text) * self.size // len(self.text) if self.text else 0


def sample_of(texts: Sequence[str | bytes | memoryview]) -> Sample:
    """At most about `SAMPLE_CHARACTERS` of texts, so that the cost of weighing them has a bound.

    Bytes are parts of JSON strings as they stand: UTF-8, with escapes. The weight of a text above that is known to
    within some percent.
    """
    size = sum(map(len, texts))
    whole = size <= SAMPLE_CHARACTERS
    taken = texts if whole else list(_cut(texts, size))
    parts = [part if isinstance(part, str) else _read(bytes(part)) for part in taken]
    text = " ".join(parts)  # a space weighs nothing, and keeps apart what are two words
    return Sample(text, len(text) if whole else size * sum(map(len, parts)) // sum(map(len, taken)))


def _read(part: bytes) -> str:
    """Where a slice has cut a character or an escape, what is left of that is as good as nothing."""
    text = part.decode("utf-8", "ignore")
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else escape[2]


def tokens_of(weight: int) -> int:
    """Whole tokens, rounded up."""
    return -(-weight // TOKEN)


def _cut(texts: Iterable[str | bytes | memoryview], size: int) -> Iterator[str | bytes | memoryview]:
    """Slices at equal distances over all texts."""
    distance = size * SLICE_CHARACTERS // SAMPLE_CHARACTERS
    start = 0
    for text in texts:
        length = len(text)
        while start < length:
            yield text[start : start + SLICE_CHARACTERS]
            start += distance
        start -= length
