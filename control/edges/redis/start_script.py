"""The script `start.lua`, and the packing of its arguments."""

from importlib import resources

from control.records.usage import BucketStart
from policy.limits.kinds import KIND_NUMBER
from policy.limits.script_constants import kind_constants


def start_text() -> str:
    """The script, with the counters' Lua before it."""
    counters = _lua("policy.limits", "month.lua") + _lua("policy.limits", "log.lua")
    return kind_constants() + counters + _lua("control.edges.redis", "start.lua")


def start_arguments(start: BucketStart) -> list[bytes]:
    """The arguments for a group. The script's key is its bucket's."""
    counts = [
        bytes([KIND_NUMBER[kind]]) + window.to_bytes(3, "little") + amount.to_bytes(7, "little")
        for kind, window, amount in start.counts
    ]
    return [b"<" + b"BI3I7" * len(counts), b"".join(counts), start.bucket.group_id.encode()]


def _lua(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text("utf-8")
