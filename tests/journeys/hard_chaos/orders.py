"""Orders of a caller to the odd vendor: the usage that it reports, and how its answer ends.

The order is text in the prompt, so it passes every dialect. Its length does not depend on its figures.
"""

import re
from dataclasses import dataclass, fields
from typing import Any

ENDINGS = ("told", "untold", "breaks", "resets", "fails", "hangs")
"""The ends of an answer. A test may order more: `waits` is `told` once the upstream's gate is open, `exceeds` reports
more than the cap.

- told: the answer is whole, and its usage is reported.
- untold: it is whole, and no usage is reported.
- breaks: the connection is closed after half of the text, as by a server that dies.
- resets: the same with an RST, before or after the head.
- fails: a 500.
- hangs: the connection is closed before the head.
"""
TIERS = ("none", "default", "flex", "priority")
_ORDER = re.compile(r"order((?: [a-z0-9_]+=\w+)+) end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The tokens that the vendor reports. `output`: it gives as many unless the cap of the call is lower."""

    input: int = 0
    cached: int = 0
    cache_writes: int = 0
    cache_writes_1h: int = 0
    """Among `cache_writes`."""
    output: int = 0
    tier: str = "none"
    pieces: int = 1
    pause_ms: int = 0
    words: int = 1
    """The words of each piece: the text, which is counted where no usage is reported, may be longer than the usage."""
    ending: str = "told"

    def text(self) -> str:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        words = [f"{name}={value:07d}" if type(value) is int else f"{name}={value}" for name, value in values.items()]
        return f"order {' '.join(words)} end"

    @classmethod
    def of(cls, body: str) -> "Order":
        """The order in a request. ValueError without one."""
        match = _ORDER.search(body)
        if match is None:
            raise ValueError("a request without an order")
        texts = dict(word.split("=", 1) for word in match[1].split())
        values: dict[str, Any] = {name: int(text) if text.isdigit() else text for name, text in texts.items()}
        return cls(**values)
