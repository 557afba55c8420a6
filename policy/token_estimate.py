"""Estimates the tokens of a text, for usage that no provider reported. Uses bytes and scripts, not a vocabulary.

The estimate is 0.6 to 1.7 times the count of `o200k_base` for prose in common scripts, code and JSON (decision 0012).
It takes linear time and is additive, so a stream can be estimated as it comes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

IMAGE_TOKENS = 765
"""Tokens of an image in a request, whatever its size: the cost of 1024 × 1024 pixels at full detail."""
DOCUMENT_TOKENS = 3000
"""Tokens of a document or video in a request: two PDF pages, each as text and as an image."""
AUDIO_TOKENS = 600
"""Tokens of an audio recording in a request: one minute."""

SPEECH_TOKENS_PER_MINUTE = 1250
"""Tokens of a minute of speech in an answer: a vendor's price per minute by its price per token."""
PICTURE_TOKENS: Mapping[str, int] = {"low": 272, "medium": 1056, "high": 4160, "xhigh": 4160, "max": 7024}
"""Tokens of a picture of 1024 × 1024 pixels in an answer, by quality."""
PICTURE_QUALITY = "medium"
PARTIAL_PICTURE_TOKENS = 100
"""Tokens of a partial picture, beside those of the picture itself."""

TOKEN = 100
"""The weight of a token. All weights are hundredths of one."""
SAMPLE_CHARACTERS = 8 << 10
SLICE_CHARACTERS = 256
"""A text longer than a sample is weighed by slices at equal distances."""

_LETTER, _CAPITAL, _DIGIT, _MARK, _SPACE = b"aA0. "
_CAPITAL_THEN_LETTER = b"Aa"
_RUNS = (
    (_CAPITAL_THEN_LETTER, b"a"),
    # One token per six letters of a word, per two marks, per three digits, per three capitals.
    *((b"aaaaaa", b"w"), (b"aaa", b"a"), (b"aa", b"a"), (b"aa", b"a")),
    *((b"AAA", b"w"), (b"AA", b"A"), (b"000", b"w"), (b"00", b"0"), (b"..", b"w")),
)
"""Replacements, in this order, that turn each run of one character class into one byte per token."""

_SQUARE = 1024 * 1024
_BY_THE_PIXEL = 1536 * 1024
"""The area up to which pictures cost as much per pixel. Larger ones are made by later models, by another rule."""
_AREA_OFFSET = 2_000_000
"""Pixels that later models add to the area of each picture."""
_SIZE = re.compile(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})")
_QUALITIES = {"standard": "medium", "hd": "high"}
"""The names of qualities that have an older one, by that."""
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_RARE = re.compile("[\u0b00-\u0b7f\u0e80-\u0eff]")
_RARE_WEIGHT = 110
"""The extra weight of each letter of Odia or Lao, which share their 256 code points with a lighter script."""

_BY_BLOCK: Mapping[range, int] = {
    range(0x01, 0x03): 45,  # Latin letters, in addition to the runs
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
    range(0x1E, 0x1F): 25,  # Vietnamese, in addition to the runs
    range(0x20, 0x21): 80,  # punctuation
    range(0x34, 0xA0): 85,  # Han
    range(0xAC, 0xD8): 75,  # Hangul
    range(0xD8, 0xE0): 90,  # half a surrogate pair: emoji and rare letters
}
_OTHER_WEIGHT = 100


def _weights() -> bytes:
    """A character's weight by the high byte of its UTF-16 unit. Latin-1 counts in runs instead."""
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
    """The weight of a text, in hundredths of a token."""
    if not text:
        return 0
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
    """Texts, or slices of them if they are long together. They are read when the weight is needed, which is rare."""

    parts: Sequence[str | bytes] = ()
    """The texts. Bytes are raw parts of JSON strings: UTF-8 with escapes."""
    given_size: int = 0
    """The size of all texts in characters, or in bytes of raw parts."""
    is_whole: bool = True
    """True if the parts are all of the texts."""
    share: Fraction | int = 1
    """The share of all texts that was given."""

    @property
    def text(self) -> str:
        """The parts. A space between them weighs nothing and separates words."""
        return " ".join(map(_read, self.parts))

    @property
    def size(self) -> int:
        """The characters of all texts; estimated unless the sample is whole."""
        return self._size(self.text)

    @property
    def weight(self) -> int:
        """The weight of all texts, extrapolated from the sample."""
        text = self.text
        return weight_of(text) * self._size(text) // len(text) if text else 0

    def _size(self, text: str) -> int:
        if self.is_whole:
            size = len(text)
        else:
            read = len(text) - len(self.parts) + 1  # without the spaces
            size = self.given_size * read // sum(map(len, self.parts))
        return size // self.share


def sample_of(texts: Sequence[str | bytes | memoryview]) -> Sample:
    """Sample about `SAMPLE_CHARACTERS` of the texts, which bounds the cost of weighing them.

    Bytes are raw parts of JSON strings: UTF-8 with escapes. A longer text's weight is accurate to some percent. Keeps
    no view of a text.
    """
    size = sum(map(len, texts))
    whole = size <= SAMPLE_CHARACTERS
    parts = [bytes(part) if isinstance(part, memoryview) else part for part in (texts if whole else _cut(texts, size))]
    return Sample(parts, size, whole)


def _read(part: str | bytes) -> str:
    """Decode a slice. A character or escape that the slice cuts in two is dropped or miscounted; that is negligible."""
    if isinstance(part, str):
        return part
    text = part.decode("utf-8", "ignore")
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else escape[2]


def tokens_of(weight: int) -> int:
    """The whole tokens of a weight, rounded up."""
    return -(-weight // TOKEN)


def picture_tokens(size: object, quality: object) -> int:
    """Tokens of a picture in an answer. `size` and `quality` as requests and events write them; else the usual ones."""
    tokens = PICTURE_TOKENS.get(_QUALITIES.get(quality, quality) if isinstance(quality, str) else "")
    whole = tokens or PICTURE_TOKENS[PICTURE_QUALITY]
    pixels = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if pixels is None:
        return whole
    width = int(pixels[1])
    height = int(pixels[2])
    area = width * height
    if area <= _BY_THE_PIXEL:
        return -(-whole * area // _SQUARE)
    scaled = whole * min(width, height) * (_AREA_OFFSET + area)
    return -(-scaled // (max(width, height) * (_AREA_OFFSET + _SQUARE)))


def _cut(texts: Iterable[str | bytes | memoryview], size: int) -> Iterator[str | bytes | memoryview]:
    """Yield slices at equal distances over all texts."""
    distance = size * SLICE_CHARACTERS // SAMPLE_CHARACTERS
    start = 0
    for text in texts:
        length = len(text)
        while start < length:
            yield text[start : start + SLICE_CHARACTERS]
            start += distance
        start -= length
