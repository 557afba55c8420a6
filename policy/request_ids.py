"""Request ids: which of those that callers send are taken over.

See docs/reference/inference.md and docs/reference/management-api.md#conventions.
"""

import re

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def valid_request_id(value: str | None) -> str | None:
    """The caller's request id if it is valid: 1 to 128 visible ASCII characters. Else None."""
    return value if value is not None and _REQUEST_ID.fullmatch(value) else None
