"""A credential is found however JSON and URLs escape it, in linear time."""

import json
import time
import tracemalloc
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http_rules.masking import HIDDEN, MAX_ESCAPES, TooManyEscapesError, mask
from proxy.http_rules.upstream_errors import without_secrets

CREDENTIAL = 'sk/a+b=c&d~é"q\\🔑 %41'
PLAIN = "sk-proj/a+b=c.d_e"


def escaped(secret: str) -> dict[str, str]:
    """The forms that encoders write, and some that only decoders accept."""
    units = [f"{unit:04x}" for unit in _utf16(secret)]
    in_json = json.dumps(secret)[1:-1]
    return {
        "as it is": secret,
        "json": in_json,
        "json, not ascii": json.dumps(secret, ensure_ascii=False)[1:-1],
        "json with \\/": in_json.replace("/", "\\/"),
        "json in json": json.dumps(in_json.replace("/", "\\/"))[1:-1],
        "all \\u": "".join(f"\\u{unit}" for unit in units),
        "all \\U": "".join(f"\\u{unit.upper()}" for unit in units),
        "\\u in json": "".join(f"\\\\u{unit}" for unit in units),
        "url": quote(secret),
        "url, all": quote(secret, safe=""),
        "url in url": quote(quote(secret, safe=""), safe=""),
        "lower case url": "".join(f"%{byte:02x}" for byte in secret.encode()),
        "url in json with \\/": quote(secret, safe="/").replace("/", "\\/"),
    }


def _utf16(text: str) -> list[int]:
    raw = text.encode("utf-16-be")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


@pytest.mark.parametrize("form", escaped(CREDENTIAL))
@pytest.mark.parametrize("secret", [CREDENTIAL, PLAIN], ids=["any characters", "visible ascii"])
def test_credential_is_masked_in_every_escaped_form(secret: str, form: str) -> None:
    text = f'{{"error": "the key {escaped(secret)[form]} is \\u0062ad, at %62\\/"}}'.encode()
    assert mask(text, secret.encode()) == b'{"error": "the key [hidden] is \\u0062ad, at %62\\/"}'


def encoded(secret: str) -> dict[str, bytes]:
    """The forms of base64 and hex that servers print."""
    raw = secret.encode()
    forms = {
        "base64": b64encode(raw),
        "base64 without padding": b64encode(raw).rstrip(b"="),
        "base64 for URLs": urlsafe_b64encode(raw),
        "base64 for URLs without padding": urlsafe_b64encode(raw).rstrip(b"="),
        "base64 of a bearer field": b64encode(b"Bearer " + raw),
        "hex": raw.hex().encode(),
        "upper hex": raw.hex().upper().encode(),
        "base64 in JSON": b64encode(b"user:" + raw).replace(b"/", b"\\/"),
        "base64 in a URL": quote(b64encode(raw + b":"), safe="").encode(),
    }
    return forms | {f"base64 of {user}:pass": b64encode(f"{user}:{secret}".encode()) for user in ("", "u", "us", "usr")}


@pytest.mark.parametrize("form", encoded(PLAIN))
@pytest.mark.parametrize("secret", [CREDENTIAL, PLAIN, "sk-12345", "\xff\xfe\xff\xfe>>>???"])
def test_credential_is_masked_in_base64_and_hex(secret: str, form: str) -> None:
    text = b'{"error": "bad: ' + encoded(secret)[form] + b', sorry"}'
    masked = mask(text, secret.encode())
    assert masked.startswith(b'{"error": "bad: [hidden]')
    assert masked.endswith(b', sorry"}')
    assert len(masked) <= len(b'{"error": "bad: [hidden]%3D%3D, sorry"}')


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_credential_is_masked_wherever_it_stands_in_base64(before: bytes, behind: bytes) -> None:
    secret = PLAIN.encode()
    assert mask(b"<" + b64encode(before + secret + behind) + b">", secret) == b"<[hidden]>"


def test_short_credential_is_not_searched_in_base64() -> None:
    assert mask(b"a " + b64encode(b"abc"), b"abc") == b"a " + b64encode(b"abc")
    assert mask(b"a abc", b"abc") == b"a [hidden]"


def test_part_of_a_credential_stays() -> None:
    """Vendors print the first and the last characters on purpose."""
    text = b'{"error": "Incorrect API key provided: sk-proj********c.d_e"}'
    assert mask(text, PLAIN.encode()) == text


def test_every_occurrence_is_masked_and_the_rest_is_unchanged() -> None:
    secret = b"a/b"
    text = rb'a\/b a/b a\\\/b \u0061/b%61%2Fb a%252fb "a\/c" \u00e9 a\u002Fba\/b' + b"\\"
    want = rb'# # # ### "a\/c" \u00e9 ##' + b"\\"
    assert mask(text, secret) == want.replace(b"###", b"## #").replace(b"#", HIDDEN)


def test_upstream_host_is_masked() -> None:
    body = rb'{"error": "http:\/\/up.example.com\u003a8443\/v1 and up%2Eexample.com%3A8443"}'
    assert without_secrets(body, None, "up.example.com:8443") == rb'{"error": "http:\/\/[hidden]\/v1 and [hidden]"}'


# Backslashes at either end may stay: each may escape another one, and they reveal nothing of the rest.
@given(st.text(min_size=8, max_size=12).filter(lambda text: text == text.strip("\\")), st.data())
def test_secret_is_found_in_any_mixture_of_escapes(secret: str, data: st.DataObject) -> None:
    try:
        secret.encode()
    except UnicodeEncodeError:
        return
    forms = []
    for character in secret:
        by_url = "".join(f"%{byte:02X}" for byte in character.encode())
        by_json = "".join(f"\\u{unit:04x}" for unit in _utf16(character))
        forms.append(data.draw(st.sampled_from([by_url, by_json])))
    text = f"<{''.join(forms)}>".encode()
    assert mask(text, secret.encode()) == b"<[hidden]>"


@given(st.binary(max_size=60), st.binary(min_size=1, max_size=4))
def test_text_without_the_secret_is_unchanged(text: bytes, secret: bytes) -> None:
    hidden = mask(text, secret)
    assert hidden == text or HIDDEN in hidden
    if b"\\" not in text and b"%" not in text:
        assert hidden == text.replace(secret, HIDDEN)


def test_body_of_too_many_escapes_is_dropped() -> None:
    body = b"%41" * (MAX_ESCAPES + 1)
    with pytest.raises(TooManyEscapesError):
        mask(body, b"AB")
    assert without_secrets(body, "AB") == b""
    assert without_secrets(body[:-3], "AB") == body[:-3]


HOSTILE = {
    "backslashes": b"\\" * (1 << 17),
    "backslashes before u": b"\\u00" * (1 << 15),
    "percents": b"%25" * ((1 << 17) // 3),
    "signs": b"%" * (1 << 17),
    "prefixes of the secret": b"a" * (1 << 17),
    "quotes": b'\\"' * (1 << 16),
    "escapes of another alphabet": b"\\u3042" * ((1 << 17) // 6),
    "escapes": b"\\u0061" * MAX_ESCAPES,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("secret", [b"a" * 2000 + b"/b", b'a"' * 1000 + b"\\b"], ids=["visible ascii", "any"])
def test_time_is_linear_in_the_text(name: str, secret: bytes) -> None:
    """Eight times the text may take at most twenty times the CPU; quadratic work would take sixty-four times."""
    text = HOSTILE[name]
    short = _cost_s(text[: len(text) // 8], secret)
    long = _cost_s(text, secret)
    assert long < 20 * max(short, 0.0005), f"{short:.6f} s, then {long:.6f} s"


@pytest.mark.parametrize("between", [b" ", b"A", b"%20"], ids=["runs", "one run", "escapes"])
def test_time_is_linear_in_the_number_of_encoded_credentials(between: bytes) -> None:
    secret = b"sk-12345"
    text = (b64encode(secret) + secret.hex().encode() + between) * 5_000
    short = _cost_s(text[: len(text) // 8], secret)
    long = _cost_s(text, secret)
    assert long < 20 * max(short, 0.0005), f"{short:.6f} s, then {long:.6f} s"


def test_memory_is_bounded() -> None:
    text = b"\\u0061" * MAX_ESCAPES + b"x" * (1 << 20)
    tracemalloc.start()
    try:
        mask(text, b"secret")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 12_000_000


def _cost_s(text: bytes, secret: bytes) -> float:
    """CPU seconds of one search, the lowest of three."""
    costs = []
    for _ in range(3):
        start_s = time.process_time()
        without_secrets(text, secret.decode())  # hopeless searches are refused by a count beforehand
        costs.append(time.process_time() - start_s)
    return min(costs)
