"""The most that a call can cost, from its body as the caller sent it: before any translation, and before admission.

Pure. Limits reserve it, so it must not be less than what the call will be billed. It looks at the structure of a body
and never at its text.

See docs/reference/limits.md#what-a-call-can-cost.
"""

from collections.abc import Mapping
from typing import Any

from policy.billing import MAX_COUNT
from proxy.json_text.json_bounds import MAX_CONTAINERS
from proxy.json_text.large_json import Outline

Json = Mapping[str, Any]

ASSUMED_OUTPUT_TOKENS = 8192
"""The cap of a call that has none, unless a setting says otherwise."""
PICTURE_TOKENS = 48_169
"""Input tokens of a picture: eight tiles of the vendor's model that counts most for one."""
SOUND_TOKENS = 135_000
"""Input tokens of a recording that is sent: the three hours, at 12.5 tokens a second, that a vendor takes at most."""
FILE_TOKENS = 1_050_000
"""Input tokens of a document, a video, or anything else behind a URL or an id: the largest context of any vendor."""
TOOLS_TOKENS = 1000
"""Input tokens that vendors add to a request that offers tools."""
_SCHEME_CHARS = 16
"""A URL has its first colon among so many characters. Data in base64 has none."""
MOST_PARTS = 8192
"""Most parts that are examined, so that a large body holds the event loop for a few milliseconds. A call with more
counts as if each object that a body may hold were a file."""

OUTPUT_CAPS = (
    *("max_tokens", "max_completion_tokens", "max_output_tokens"),
    *("max_new_tokens", "max_tokens_to_sample", "n_predict", "num_predict"),
)
"""The names that dialects and servers have for the cap of an answer's tokens."""
ANSWER_COUNTS = ("n", "best_of")
"""Members that say how many answers a request asks for."""
COUNTING = frozenset((*ANSWER_COUNTS, "prompt"))
"""The members that `answers` reads."""
MOST_EDITED_PICTURES = 16
MOST_EDITS = 10
"""The most pictures that `/v1/images/edits` takes, and gives, in one call of any known vendor."""
EDITED_PICTURE_TOKENS = 16_384
"""Input tokens of a picture to edit. Vendors document at most 6821, and nothing for their newest models."""

EMBEDDINGS_PATH = "/v1/embeddings"
COMPLETIONS_PATH = "/v1/completions"
EDITS_PATH = "/v1/images/edits"
WITHOUT_OUTPUT = frozenset((EMBEDDINGS_PATH, "/v1/moderations", "/v1/rerank", "/v2/rerank"))
"""Paths whose calls generate no tokens."""
_CONTENT = frozenset(("messages", "input", "system", "prompt", "instructions", "documents"))
"""Members that hold text, or lists of parts."""
_PICTURES = ("image", "images", "mask")
_BESIDE_CONTENT = frozenset((*_PICTURES, "tools", "functions"))
_SOUNDS = ("audio", "audio_url", "input_audio", "audio_embeds")
_PART_TOKENS = {
    **dict.fromkeys(("image", "image_url", "input_image", "image_pil", "image_embeds"), PICTURE_TOKENS),
    **dict.fromkeys(_SOUNDS, SOUND_TOKENS),
    **dict.fromkeys(("file", "input_file", "video", "video_url", "input_video", "document"), FILE_TOKENS),
    **dict.fromkeys(("file_url", "file_id", "container_upload", "item_reference"), FILE_TOKENS),
    "computer_screenshot": PICTURE_TOKENS,
}
"""Tokens by the type of a part, or by a member that servers take for its type."""
_MARKS = frozenset(_PART_TOKENS)
PLAIN_MESSAGE = frozenset(("role", "content"))
"""The members of nearly every message."""
_INNER = _MARKS | {"content", "output", "source"}
"""Members of a part that has to be looked at."""


def answers(body: Json, path: str) -> int:
    """Return how many answers a call may generate: `n` times `best_of` times the prompts of a list."""
    count = 1
    for name in ANSWER_COUNTS:
        number = body.get(name)
        if type(number) is int and number > 1:
            count *= number
    if path == COMPLETIONS_PATH and type(prompts := body.get("prompt")) is list and prompts:
        count *= 1 if type(prompts[0]) is int else len(prompts)  # one prompt may be given as its tokens
    return min(count, MAX_COUNT)


def most_input(body: Json, body_bytes: int, outline: Outline | None, part_tokens: int = 0) -> int:
    """Return the most input tokens of a JSON body: one per byte, and a figure per picture, recording and file.

    The data of a picture in the body counts by the figure alone. `part_tokens` replaces the figure of each part.
    """
    tokens = body_bytes if _BESIDE_CONTENT.isdisjoint(body) else body_bytes + _beside_content(body, part_tokens)
    for name in _CONTENT.intersection(body):
        content = body[name]
        if type(content) is list:
            for part in content:
                if type(part) is not dict or part.keys() != PLAIN_MESSAGE or type(part["content"]) is not str:
                    return tokens + _media_tokens(body, outline, part_tokens)
    return tokens


def _media_tokens(body: Json, outline: Outline | None, part_tokens: int) -> int:
    """The tokens of all parts that are not text, less what they hold as text."""
    tokens = 0
    contents = [*map(body.get, _CONTENT.intersection(body))]
    parts_left = MOST_PARTS
    while contents:
        content = contents.pop()
        if type(content) is not list:
            continue  # text
        for part in content:
            if type(part) is not dict or (part.keys() == PLAIN_MESSAGE and type(part["content"]) is str):
                continue  # text, as nearly every message
            kind = part.get("type")
            if not _INNER.isdisjoint(part) or (type(kind) is str and kind in _MARKS):
                parts_left -= 1
                if parts_left < 0:
                    return MAX_CONTAINERS * (part_tokens or FILE_TOKENS)
                contents += _contents(part)
                if figure := _figure(part):
                    tokens += (part_tokens or figure) - _picture_bytes(part, figure, outline)
    return tokens


def most_form_input(path: str) -> int:
    """The most input tokens of a form, whose files arrive after its admission."""
    return EDITED_PICTURE_TOKENS * MOST_EDITED_PICTURES if path == EDITS_PATH else SOUND_TOKENS


def most_form_answers(path: str) -> int:
    """Return how many answers a form may ask for if `n` has not arrived when it is admitted."""
    return MOST_EDITS if path == EDITS_PATH else 1


def _beside_content(body: Json, part_tokens: int) -> int:
    """Count what tools add, and pictures that are members of the body itself."""
    tokens = TOOLS_TOKENS if body.get("tools") or body.get("functions") else 0
    for name in _PICTURES:
        if pictures := body.get(name):
            tokens += (len(pictures) if type(pictures) is list else 1) * (part_tokens or PICTURE_TOKENS)
    return tokens


def _contents(part: dict[str, Any]) -> tuple[Any, ...]:
    """The contents of a part, lists or not: of messages and of results, a tool's output, a document's source."""
    source = part.get("source")
    output = part.get("output")
    return (
        part.get("content"),
        source.get("content") if type(source) is dict else None,
        [output] if type(output) is dict else output,
    )


def _figure(part: dict[str, Any]) -> int:
    """The figure of a part that is not text, by its type and by what servers take for its type; 0 for text."""
    marks = _MARKS.intersection(part)
    kind = part.get("type")
    source = part.get("source")
    is_text = kind == "document" and type(source) is dict and source.get("type") in ("text", "content")
    if type(kind) is str and kind in _MARKS and not is_text:
        marks |= {kind}
    figure = max((_PART_TOKENS[mark] for mark in marks), default=0)
    return FILE_TOKENS if figure == SOUND_TOKENS and _is_sound_elsewhere(part) else figure


def _is_sound_elsewhere(part: dict[str, Any]) -> bool:
    """Return whether a recording is behind a URL. Servers take URLs in each member that may hold its data."""
    for name in _SOUNDS:
        value = part.get(name)
        for text in value.values() if type(value) is dict else (value,):
            if type(text) is str and ":" in text[:_SCHEME_CHARS] and not text.startswith("data:"):
                return True
    return False


def _picture_bytes(part: dict[str, Any], figure: int, outline: Outline | None) -> int:
    """The size of a picture's data in the body; 0 if there is none, or the part may be more than a picture."""
    kind = part.get("type")
    if figure != PICTURE_TOKENS or kind not in ("image", "image_url", "input_image"):
        return 0
    holder = part.get("source" if kind == "image" else "image_url")
    data = holder.get("data" if kind == "image" else "url") if type(holder) is dict else holder
    if type(data) is not str or not (kind == "image" or data.startswith("data:image/")):
        return 0
    return len(data) if outline is None else sum(map(len, outline.original_segments([data], 1)))
