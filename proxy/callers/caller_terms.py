"""The terms on which a caller may call, made of the settings of its key.

They are checked with each call (`stages/authenticate.py`, `stages/route.py`), also where the caller was remembered by
its head: time passes and addresses differ without a change of policy. Most callers have none.
"""

from dataclasses import dataclass

from policy.keys.settings import KeySettings
from proxy.callers.address_ranges import AddressRanges

NEVER_MS = 1 << 63
"""The end of terms that do not end."""


@dataclass(frozen=True, slots=True)
class CallerTerms:
    """Terms of a caller."""

    ends_at_ms: int = NEVER_MS
    """The first moment, in ms since 1970, at which the caller is refused. 0: at any time, as with a disabled key."""
    addresses: AddressRanges | None = None
    """The addresses from which it may call; None: from all."""
    slugs: frozenset[str] | None = None
    """The slugs that it may call, of those that its group may call; None: all of them."""

    def covers(self, slug: str) -> bool:
        """Return whether the caller may call the slug, if its group may."""
        return self.slugs is None or slug in self.slugs


def terms_of(settings: KeySettings | None) -> CallerTerms | None:
    """Return the terms that these settings make, beside the key's own limits; None if they make none.

    Raises ValueError or TypeError for values that this version does not know: to ignore them would widen the key.
    """
    if settings is None:
        return None
    addresses = AddressRanges(settings.allowed_ips) if settings.allowed_ips else None
    slugs = None if settings.slugs is None else frozenset(settings.slugs)
    terms = CallerTerms(_end_ms(settings), addresses, slugs)
    return None if terms == CallerTerms() else terms


def _end_ms(settings: KeySettings) -> int:
    end_ms = settings.expires_at_ms
    if type(settings.disabled) is not bool or (end_ms is not None and type(end_ms) is not int):
        raise TypeError("expires_at_ms is a whole number, disabled is true or false")
    if settings.disabled:
        return 0
    return NEVER_MS if end_ms is None else end_ms
