"""Joins a tool's namespace and name for targets without namespaces.

Pure. The answer's writer splits them again by `Tool.namespaced`.
"""

from hashlib import sha256

MAX_NAME_CHARS = 64
"""The longest name of a function at every vendor."""


def joined_name(namespace: str, name: str) -> str:
    """One name for both, at most `MAX_NAME_CHARS` long; the same for the same pair."""
    joined = f"{namespace}__{name}"
    if len(joined) <= MAX_NAME_CHARS:
        return joined
    mark = sha256(joined.encode()).hexdigest()[:8]
    return f"{joined[: MAX_NAME_CHARS - len(mark) - 1]}_{mark}"
