"""Sealing of secrets: key rotation, binding to the secret's id, and errors that do not reveal the secret."""

import base64

import pytest

from policy.sealing import NONCE_BYTES, SealedWithUnknownKeyError, parse_keys, seal, unseal

OLD = bytes(range(32))
NEW = bytes(range(1, 33))
NONCE = b"n" * NONCE_BYTES


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize("value", ["", "sk-123", "ü" * 10_000, '{"private_key": "…"}'])
def test_a_sealed_value_is_unsealed_unchanged(value: str) -> None:
    sealed = seal([NEW], "s1", value, NONCE)
    assert unseal([NEW], "s1", sealed) == value
    assert value == "" or value not in sealed


def test_the_first_key_seals_and_any_key_unseals() -> None:
    sealed_before = seal([OLD], "s1", "v", NONCE)
    assert unseal([NEW, OLD], "s1", sealed_before) == "v"
    assert unseal([NEW], "s1", seal([NEW, OLD], "s1", "v", NONCE)) == "v"


@pytest.mark.parametrize(
    ("keys", "id", "damage"),
    [
        ([OLD], "s1", lambda text: text),
        ([NEW], "s2", lambda text: text),
        ([], "s1", lambda text: text),
        ([NEW], "s1", lambda text: text[:-4]),
        ([NEW], "s1", lambda text: "AAAA" + text[4:]),
        ([NEW], "s1", lambda text: ""),
        ([NEW], "s1", lambda text: text[:8]),
        ([NEW], "s1", lambda text: text[:20]),
        ([NEW], "s1", lambda text: text[:-1]),
        ([NEW], "s1", lambda text: "not base64 ü"),
    ],
)
def test_a_wrong_key_id_or_ciphertext_is_refused(keys: list[bytes], id: str, damage: object) -> None:
    assert callable(damage)
    with pytest.raises(SealedWithUnknownKeyError, match="TOLLGATE_SECRET_KEY"):
        unseal(keys, id, damage(seal([NEW], "s1", "v", NONCE)))


@pytest.mark.parametrize("setting", [b64(OLD), f" {b64(OLD)} , {b64(NEW)},", f"{b64(NEW)},{b64(OLD)}"])
def test_keys_are_parsed_from_the_setting_in_order(setting: str) -> None:
    assert parse_keys(setting)[0] == (NEW if setting.startswith(b64(NEW)) else OLD)
    assert len(parse_keys(setting)) == setting.strip(",").count(",") + 1


@pytest.mark.parametrize("setting", ["", " , ", "c2hvcnQ=", f"{b64(OLD)},hush", "hüsh", b64(OLD)[:-1], b64(OLD + b"x")])
def test_a_malformed_key_is_refused_and_not_shown(setting: str) -> None:
    with pytest.raises(ValueError, match="TOLLGATE_SECRET_KEY must be") as caught:
        parse_keys(setting)
    assert "sh" not in str(caught.value).replace("must", "")
    assert caught.value.__cause__ is None
