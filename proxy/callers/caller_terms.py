"""The terms on which a caller may call, made of the settings of its key.

They are checked with each call (`stages/authenticate.py`, `stages/route.py`), also where the caller was remembered by
its head: time passes and addresses differ without a change of policy. Most callers have none.
"""

from dataclasses import dataclass

from policy.keys.settings import KeySettings

NEVER_MS = 1 << 63
"""The end of terms that do not end."""


@dataclass(frozen=True, slots=True)
class CallerTerms:
    """Terms of a caller."""

    ends_at_ms: int = NEVER_MS
    """The first moment, in ms since 1970, at which the caller is refused. 0: at any time, as with a disabled key."""


def terms_of(settings: KeySettings | None) -> CallerTerms | None:
    """Return the terms that these settings make, beside the key's own limits; None if they make none.

    Raises ValueError or TypeError for values that this version does not know: to ignore them would widen the key.
    """
    if settings is None:
        return None
    terms = CallerTerms(_end_ms(settings))
    return None if terms == CallerTerms() else terms


def _end_ms(settings: KeySettings) -> int:
    end_ms = settings.expires_at_ms
    if type(settings.disabled) is not bool or (end_ms is not None and type(end_ms) is not int):
        raise TypeError("expires_at_ms is a whole number, disabled is true or false")
    if settings.disabled:
        return 0
    return NEVER_MS if end_ms is None else end_ms
