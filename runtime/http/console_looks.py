"""The mark of a look: a call that a page of the console makes to show something, which counts in no figure of calls.

Control sets it and the proxy checks it. It takes TOLLGATE_INTERNAL_TOKEN to make one, so no caller hides its calls.
"""

import hmac

HEADER = "x-tollgate-console-look"
_PURPOSE = b"tollgate: looks of the console"


def look_mark(internal_token: str) -> str:
    """The value of `HEADER`. It does not tell the token."""
    return hmac.digest(internal_token.encode(), _PURPOSE, "sha256").hex()


def is_look_mark(value: str, mark: str) -> bool:
    """Return whether a caller's value is the mark. "" marks nothing."""
    return mark != "" and hmac.compare_digest(value.encode("utf-8", "replace"), mark.encode())
