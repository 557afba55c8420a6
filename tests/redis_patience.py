"""The time for which control waits for Redis, as long as a busy machine may take."""

import pytest

from control.edges.inspection import redis_look
from control.edges.redis import client, load_book, usage_counters
from control.edges.redis.spend import spend_hashes

PATIENCE_S = 60.0


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have control wait for an answer of Redis as long as a test does, and not as briefly as its callers."""
    for module in (load_book, redis_look, usage_counters, spend_hashes):
        monkeypatch.setattr(module, "_DEADLINE_S", PATIENCE_S)
    monkeypatch.setattr(client, "TIMEOUT_S", PATIENCE_S)
