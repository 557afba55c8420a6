"""A name as a JSON string, as it is put into bodies and frames."""

from functools import lru_cache

import orjson


@lru_cache(maxsize=4096)
def encoded_name(name: str) -> bytes:
    """`name` as a JSON string. A copy, because what orjson returns keeps 4 KiB of memory, and names are kept long."""
    return b"%b" % orjson.dumps(name)
