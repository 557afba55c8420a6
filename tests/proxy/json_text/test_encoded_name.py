"""An encoded name is a JSON string that holds no more memory than its bytes."""

import tracemalloc

from proxy.json_text.encoded_name import encoded_name

NAMES = 100


def test_encoded_name_is_a_json_string() -> None:
    assert encoded_name('bench/"ü"') == '"bench/\\"ü\\""'.encode()


def test_encoded_names_hold_no_more_than_their_bytes() -> None:
    """A bytes object of orjson keeps 4 KiB, however short it is."""
    names = [f"kept/{number}" for number in range(NAMES)]
    tracemalloc.start()
    try:
        encoded_names = [encoded_name(name) for name in names]
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(encoded_names) == NAMES
    assert held_bytes < NAMES * 1000  # the cache included
