"""API keys: their form, what each kind may do, and which key a request presents.

See docs/reference/management-api.md#api-keys.
"""

import hashlib

import pytest

from policy.credentials import (
    MODEL_CALLERS,
    KeyKind,
    credentials_in,
    digest_of,
    join_key,
    may_call_slugs,
    may_export_metrics,
    may_manage,
    prefix_of,
    registered_prefix,
    unregistrable,
)

KEY = join_key("abcDEF012345", "s" * 27)


@pytest.mark.parametrize(
    ("kind", "manage", "slugs", "invoke", "metrics"),
    [
        (KeyKind.FEDERATED, False, True, False, False),
        (KeyKind.WORKSPACE_MANAGE_ALL, True, False, True, False),
        (KeyKind.WORKSPACE_INVOKE, False, False, True, False),
        (KeyKind.WORKSPACE_EXPORT_METRICS, False, False, False, True),
    ],
)
def test_each_key_kind_has_its_rights(kind: KeyKind, manage: bool, slugs: bool, invoke: bool, metrics: bool) -> None:
    rights = may_manage(kind), may_call_slugs(kind), kind in MODEL_CALLERS, may_export_metrics(kind)
    assert rights == (manage, slugs, invoke, metrics)


def test_prefix_and_digest_are_derived_from_the_key() -> None:
    assert prefix_of(KEY) == "tg_abcDEF012345"
    assert digest_of(KEY) == hashlib.sha256(KEY.encode()).hexdigest()
    assert digest_of(KEY) != digest_of(KEY + "x")


@pytest.mark.parametrize(
    "text", ["", "tg_", "tg_abcDEF012345", KEY[:-1], KEY + ".", KEY + "\n", "x" + KEY, "sk-" + KEY[3:]]
)
def test_text_that_is_not_a_key_has_no_prefix(text: str) -> None:
    assert prefix_of(text) == ""


@pytest.mark.parametrize(
    "key", ["!" * 24, "~" * 256, "sk-proj-0123456789_ABCDEFGHIJ", "a.b.c.0123456789-0123456789", "Tg_" + "x" * 40]
)
def test_key_of_ones_own_is_named_by_its_digest(key: str) -> None:
    assert unregistrable(key) == ""
    assert registered_prefix(key) == f"own_{hashlib.sha256(key.encode()).hexdigest()[:12]}"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "24 to 256"),
        ("x" * 23, "24 to 256"),
        ("x" * 257, "24 to 256"),
        ("x" * 30 + " y", "24 to 256"),
        ("x" * 30 + "\n", "24 to 256"),
        ("x" * 30 + "\x7f", "24 to 256"),
        ("x" * 30 + "é", "24 to 256"),
        (KEY, "tg_"),
        ("tg_of-another-form-0123456789", "tg_"),
        ("eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl-_", "JWT"),
        ("eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.", "JWT"),
    ],
)
def test_key_that_is_weak_or_of_another_form_cannot_be_registered(key: str, reason: str) -> None:
    assert reason in unregistrable(key)
    assert not key or key not in unregistrable(key)


def test_digest_covers_bytes_that_are_not_utf8() -> None:
    raw = b"tg_\xff\xfe"
    assert digest_of(raw.decode("utf-8", "surrogateescape")) == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "presented"),
    [
        ([], [], []),
        (["Bearer k"], [], ["k"]),
        (["bearer  k "], [], ["k"]),
        (["Api-Key k"], [], ["k"]),
        (["API-KEY k"], [], ["k"]),
        ([], ["k"], ["k"]),
        ([], [" k "], ["k"]),
        (["Bearer k"], ["k"], ["k"]),
        (["Bearer k", "Api-Key k"], [], ["k"]),
        (["Bearer k"], [""], ["k"]),
        (["Bearer k"], ["other"], ["k", "other"]),
        (["Bearer k", "Bearer other"], [], []),
        (["Bearer k", "Basic k"], [], []),
        ([], ["k", "other"], []),
        (["Bearer k", "Bearer other"], ["k"], []),
        (["Basic k"], [], []),
        (["Basic k"], ["k"], ["k"]),
        (["Bearer"], [], []),
        (["Bearer "], [], []),
        (["Bearer"], ["k"], ["k"]),
        (["k"], [], []),
        ([""], [], []),
        ([], ["", " "], []),
    ],
)
def test_presented_keys_are_read_from_both_headers(
    authorization: list[str], x_api_key: list[str], presented: list[str]
) -> None:
    assert list(credentials_in(authorization, x_api_key)) == presented
