"""Names of header fields in lower case, cached by the bytes that arrived. Pure."""

KNOWN_NAMES = 512
"""Names that a cache keeps. Peers repeat few names; more of them must not fill the memory."""


class HeaderNames(dict[bytes, str]):
    """Look up `names[raw]`. A new name is decoded, and cached while there is room."""

    def __missing__(self, raw: bytes) -> str:
        name = raw.decode("latin-1").lower()
        if len(self) < KNOWN_NAMES:
            self[raw] = name
        return name
