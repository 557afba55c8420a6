"""Rules of webhook messages, without a database: content, signatures, retries."""

import random
import time
from dataclasses import replace
from types import SimpleNamespace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from control.edges.sql.events.ingest import NewEvent
from control.records.webhooks import DeliveryAttempt
from control.resources.webhook_messages import (
    EVENTS_PER_MESSAGE,
    FIRST_DELAY_MS,
    LOGGED_ATTEMPTS,
    LONGEST_DELAY_MS,
    METADATA_CHARS_PER_MESSAGE,
    RETRY_FOR_MS,
    _messages_of,
    after_attempt,
    body_of,
    delay_ms_after,
    new_delivery,
    signed_headers,
)
from control.resources.webhooks import new_secret

NOW_MS = 1_795_000_000_000


def row(key: str, metadata: str | None = None, timestamp_ms: int = NOW_MS) -> SimpleNamespace:
    return SimpleNamespace(
        idempotency_key=key,
        timestamp_ms=timestamp_ms,
        request_id="req-1",
        model_slug="acme/chat",
        external_entity_id="customer-1",
        api_key_prefix="tg_aaaaaaaaaaaa",
        input_tokens=5,
        output_tokens=6,
        cached_input_tokens=2,
        request_metadata=metadata,
    )


def test_metadata_keeps_every_digit() -> None:
    exact = '{"id":340282366920938463463374607431768211456,"x":0.1234567890123456789}'
    delivery = new_delivery("whk_1", "API_BILLING_USAGE", ["k1"], NOW_MS)
    assert f'"requestMetadata":{exact}}}'.encode() in body_of(delivery, {"k1": row("k1", exact)})


def test_a_message_holds_the_listed_form_of_events_and_their_metadata() -> None:
    delivery = new_delivery("whk_1", "API_BILLING_USAGE", ["k1", "k2", "gone"], NOW_MS)
    message = orjson.loads(body_of(delivery, {"k2": row("k2"), "k1": row("k1", '{"trace": [1]}')}))
    assert (message["type"], message["timestamp"]) == ("API_BILLING_USAGE", "2026-11-18T11:06:40.000Z")
    first, second = message["data"]["events"]
    assert first == {
        "type": "API_BILLING_USAGE",
        "idempotencyKey": "k1",
        "timestamp": "2026-11-18T11:06:40.000Z",
        "requestId": "req-1",
        "modelSlug": "acme/chat",
        "externalEntityId": "customer-1",
        "apiKeyPrefix": "tg_aaaaaaaaaaaa",
        "tokens": {"inputTokens": 5, "outputTokens": 6, "cachedInputTokens": 2},
        "requestMetadata": {"trace": [1]},
    }
    assert second["requestMetadata"] is None


def test_standardwebhooks_verifies_with_either_secret_and_no_other() -> None:
    now_ms = time.time_ns() // 1_000_000
    old = new_secret()
    new = new_secret()
    other = new_secret()
    body = '{"a":"é"}'.encode()
    headers = signed_headers("msg_1", body, now_ms, [new, old])
    assert Webhook(old).verify(body, headers) == Webhook(new).verify(body, headers) == {"a": "é"}
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(new).verify(body + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(new).verify(body, {**headers, "webhook-id": "msg_2"})


def new_event(key: str, timestamp_ms: int, metadata: str | None) -> NewEvent:
    return NewEvent(key, "ws", "grp", "customer", "tg_x", "r", "a/b", timestamp_ms, 1, 1, 0, 200, metadata, 0)


@given(st.lists(st.integers(0, METADATA_CHARS_PER_MESSAGE * 2), max_size=300))
def test_messages_are_bounded_and_hold_every_event_once(sizes: list[int]) -> None:
    rows = [new_event(f"k{n:04d}", n // 3, "x" * (size // 1000) or None) for n, size in enumerate(sizes)]
    shuffled = rows.copy()
    random.Random(1).shuffle(shuffled)
    messages = _messages_of(shuffled)
    assert [key for keys in messages for key in keys] == [one.idempotency_key for one in rows]
    assert all(0 < len(keys) <= EVENTS_PER_MESSAGE for keys in messages)


def test_events_with_large_metadata_are_split_into_more_messages() -> None:
    rows = [new_event(f"k{n}", n, "x" * 200_000) for n in range(3)]
    assert _messages_of(rows) == [["k0"], ["k1"], ["k2"]]


@pytest.mark.parametrize("status", [200, 204, 299])
def test_any_2xx_counts_as_delivered(status: int) -> None:
    delivery = new_delivery("whk_1", "TEST", (), NOW_MS)
    values = after_attempt(delivery, DeliveryAttempt(NOW_MS, 12, status, None), 0.5)
    assert (values["status"], values["ended_at_ms"]) == ("DELIVERED", NOW_MS + 12)
    assert orjson.loads(values["attempt_log"]) == [[NOW_MS, 12, status, None]]


@pytest.mark.parametrize("status", [None, 301, 400, 410, 500])
def test_anything_but_2xx_is_retried_for_three_days(status: int | None) -> None:
    delivery = replace(new_delivery("whk_1", "TEST", (), NOW_MS), attempts=1)
    values = after_attempt(delivery, DeliveryAttempt(NOW_MS, 0, status, "no"), 0.5)
    assert "status" not in values
    assert NOW_MS < values["next_attempt_at_ms"] <= NOW_MS + FIRST_DELAY_MS
    last = after_attempt(delivery, DeliveryAttempt(NOW_MS + RETRY_FOR_MS, 0, status, "no"), 0.5)
    assert last["status"] == "DEAD"


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 20_000))
def test_attempts_spread_over_three_days_with_the_last_at_the_end(chance: float, duration_ms: int) -> None:
    delivery = new_delivery("whk_1", "TEST", (), NOW_MS)
    at_ms = NOW_MS
    attempts = 0
    while True:
        attempts += 1
        values = after_attempt(
            replace(delivery, attempts=attempts), DeliveryAttempt(at_ms, duration_ms, 500, "no"), chance
        )
        if "status" in values:
            break
        assert values["next_attempt_at_ms"] - at_ms - duration_ms <= LONGEST_DELAY_MS
        at_ms = values["next_attempt_at_ms"]
    assert values["status"] == "DEAD"
    assert NOW_MS + RETRY_FOR_MS - duration_ms <= at_ms <= NOW_MS + RETRY_FOR_MS
    assert 15 <= attempts <= 40


@given(st.integers(1, 100))
def test_delays_grow_and_have_jitter(attempts: int) -> None:
    assert delay_ms_after(attempts, 0.0) * 2 >= delay_ms_after(attempts, 0.999) > delay_ms_after(attempts, 0.0)
    assert delay_ms_after(attempts + 1, 0.5) >= delay_ms_after(attempts, 0.5)


def test_retry_after_is_respected_up_to_a_bound() -> None:
    delivery = replace(new_delivery("whk_1", "TEST", (), NOW_MS), attempts=1)
    values = after_attempt(delivery, DeliveryAttempt(NOW_MS, 0, 429, "no", 60_000), 0.5)
    assert values["next_attempt_at_ms"] == NOW_MS + 60_000
    values = after_attempt(delivery, DeliveryAttempt(NOW_MS, 0, 429, "no", 80_000_000), 0.5)
    assert values["next_attempt_at_ms"] == NOW_MS + LONGEST_DELAY_MS


def test_the_attempt_log_keeps_the_latest_attempts() -> None:
    delivery = replace(new_delivery("whk_1", "TEST", (), NOW_MS), attempts=1)
    for n in range(LOGGED_ATTEMPTS + 5):
        delivery = replace(
            delivery, attempt_log=after_attempt(delivery, DeliveryAttempt(NOW_MS + n, 0, 500, "no"), 0.5)["attempt_log"]
        )
    log = orjson.loads(delivery.attempt_log)
    assert (len(log), log[-1][0]) == (LOGGED_ATTEMPTS, NOW_MS + LOGGED_ATTEMPTS + 4)
