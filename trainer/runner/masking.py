"""Masks secrets in a stream of bytes, also those that two reads divide. Pure.

See docs/reference/training.md#masking.
"""

import json
import re

MASK = b"***"
MIN_CHARS = 4
"""The length below which secrets are not masked: they occur in ordinary words, so masks would show what they are."""
MIN_LINE_CHARS = 8
"""The length from which a line of a secret of several lines is masked on its own as well."""


def masked_forms(secrets: list[str]) -> list[bytes]:
    """Return what to look for, longest first: each secret as it is, without white space around it, its long lines; all
    of them also as JSON shows them."""
    plain = set[str]()
    for secret in secrets:
        if len(secret.strip()) >= MIN_CHARS:
            plain |= {secret, secret.strip()}
        plain |= {line.strip() for line in secret.splitlines() if len(line.strip()) >= MIN_LINE_CHARS}
    forms = {json.dumps(form, ensure_ascii=is_ascii)[1:-1] for form in plain for is_ascii in (True, False)} | plain
    encoded = {form.encode(errors="surrogateescape") for form in forms}
    return sorted(encoded, key=lambda form: (-len(form), form))


class Masker:
    """One stream. Holds back only what may be the beginning of a secret."""

    def __init__(self, forms: list[bytes]) -> None:
        self._forms = forms
        self._pattern = re.compile(b"|".join(map(re.escape, forms))) if forms else None
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return what may be shown now."""
        if self._pattern is None:
            return data
        text = self._rest + data
        end = self._safe_end(text)
        for match in self._pattern.finditer(text):
            if match.start() >= end:
                break
            end = max(end, match.end())
        self._rest = text[end:]
        return self._pattern.sub(MASK, text[:end])

    def flush(self) -> bytes:
        """Return what is left at the end of the stream."""
        rest = self._rest
        self._rest = b""
        return rest if self._pattern is None else self._pattern.sub(MASK, rest)

    def _safe_end(self, text: bytes) -> int:
        """Return where the first secret may begin that does not end in this text."""
        end = len(text)
        for form in self._forms:
            at = text.find(form[:1], max(0, len(text) - len(form) + 1))
            while 0 <= at < end:
                if form.startswith(text[at:]):
                    end = at
                    break
                at = text.find(form[:1], at + 1)
        return end
