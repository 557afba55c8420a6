"""Reads data URLs and media types as callers write them, in the spelling that every vendor accepts.

Pure. The data may be a placeholder of a long body: it is neither decoded nor searched.
"""

import re

_DATA_URL = re.compile(
    r"data:(?P<media>[\w.+-]{1,64}+/[\w.+-]{1,100}+)(?:;[\w.+-]{1,64}+=[^;,]{0,200}+){0,8};base64,",
    re.ASCII | re.IGNORECASE,
)
_OTHER_NAMES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "application/x-pdf": "application/pdf",
}


def media_and_data(url: str) -> tuple[str, str] | None:
    """The media type and the base64 data; None for another URL. Parameters, such as a file's name, are left out."""
    match = _DATA_URL.match(url)
    return None if match is None else (accepted_media(match["media"]), url[match.end() :])


def accepted_media(media: str) -> str:
    """The registered name of a media type, in lower case."""
    plain = media.lower()
    return _OTHER_NAMES.get(plain, plain)
