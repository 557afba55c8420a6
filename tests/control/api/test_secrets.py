"""Secrets over HTTP and at rest, on both databases (docs/reference/management-api.md#secrets)."""

import asyncio
import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from sqlalchemy import select, update

from control.edges.sql import tables
from control.resources.sealing.resealing import reencrypt_all
from policy.sealing import SealedWithUnknownKeyError, seal, unseal
from tests.control.plane import SECRET_KEYS, ControlPlane

PATH = "/v1/secrets"
VALUE = "sk-very-secret-value"
ENDPOINTS = "/v1/gateway/endpoints"


async def ciphertexts(plane: ControlPlane) -> dict[str, str]:
    async with plane.store.read() as conn:
        query = select(tables.secrets.c.id, tables.secrets.c.ciphertext)
        return {row.id: row.ciphertext for row in await conn.execute(query)}


async def test_a_secret_is_stored_rotated_and_deleted(plane: ControlPlane) -> None:
    secret = (await plane.post(PATH, {"name": "vendor", "value": VALUE})).ok()
    assert secret.keys() == {"id", "name", "team_name", "created_at", "updated_at"}
    again = (await plane.post(PATH, {"name": "vendor", "value": "other"})).ok()
    assert again["id"] == secret["id"]
    assert again["created_at"] == secret["created_at"]
    assert again["updated_at"] > secret["updated_at"]
    assert (await plane.get(PATH)).ok()["items"] == [again]
    assert unseal(SECRET_KEYS, secret["id"], (await ciphertexts(plane))[secret["id"]]) == "other"
    assert (await plane.delete(f"{PATH}/vendor")).ok() == {"id": secret["id"], "name": "vendor", "deleted": True}
    (await plane.delete(f"{PATH}/vendor")).refused(404)
    assert (await plane.get(PATH)).ok()["items"] == []


async def test_a_value_is_never_shown_stored_or_published(plane: ControlPlane) -> None:
    answer = await plane.post(PATH, {"name": "vendor", "value": VALUE})
    listed = await plane.get(PATH)
    async with plane.store.read() as conn:
        rows = [(await conn.execute(select(table))).all() for table in (tables.secrets, tables.published)]
    for text in (str(answer), str(listed), str(rows)):
        assert VALUE not in text
        assert base64.b64encode(VALUE.encode()).decode() not in text


async def test_an_invalid_value_is_not_echoed(sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    for body in ({"name": "x", "value": [VALUE]}, {"name": "", "value": VALUE}, {"nam": "x", "value": VALUE}):
        answer = await sqlite_plane.post(PATH, body)
        answer.refused(400)
        assert VALUE not in str(answer)
    assert VALUE not in caplog.text


async def test_a_service_account_with_an_unusable_key_is_refused(sqlite_plane: ControlPlane) -> None:
    small, large = (rsa.generate_private_key(public_exponent=65537, key_size=size) for size in (1024, 2048))
    n = large.private_numbers().public_numbers.n
    p = large.private_numbers().p
    public = rsa.RSAPublicNumbers(65537, n**4)
    absurd = rsa.RSAPrivateNumbers(p**4, n**4 // p**4, 3, 3, 3, 3, public).private_key(
        unsafe_skip_rsa_key_validation=True
    )
    for key in (small, absurd):
        refused = await sqlite_plane.post(PATH, {"name": "robot", "value": service_account(key)})
        assert "value" in str(refused.refused(400))
        assert "2048 to 4096 bits" in str(refused)
        assert "PRIVATE KEY" not in str(refused)
    (await sqlite_plane.post(PATH, {"name": "robot", "value": service_account(large)})).ok()
    (await sqlite_plane.post(PATH, {"name": "robot", "value": service_account(absurd)})).refused(400)  # rotated into
    assert unseal(SECRET_KEYS, *next(iter((await ciphertexts(sqlite_plane)).items()))) == service_account(large)


UNSENDABLE = ["sk-1\n", "a\r\nb: c", "a\tb", "a\x7f", "a\u0085b", "s" * 8193, "é" * 4097]
TARGET = {"provider": "VENDOR_B", "target_model": "m"}


@pytest.mark.parametrize("value", UNSENDABLE)
async def test_an_endpoint_names_no_secret_that_no_header_can_carry(sqlite_plane: ControlPlane, value: str) -> None:
    plane = sqlite_plane
    unusable = (await plane.post(PATH, {"name": "training", "value": value})).ok()["id"]
    body = {"slug": "acme/a", "targets": [TARGET | {"secret_id": unusable}]}
    problem = (await plane.post(ENDPOINTS, body)).refused(400)
    assert [detail["field"] for detail in problem["details"]] == ["targets.0.secret_id"]
    usable = (await plane.post(PATH, {"name": "vendor", "value": "s" * 8192})).ok()["id"]
    endpoint = (await plane.post(ENDPOINTS, {"slug": "acme/a", "targets": [TARGET | {"secret_id": usable}]})).ok()
    (await plane.patch(f"{ENDPOINTS}/{endpoint['id']}", {"targets": body["targets"]})).refused(400)
    problem = (await plane.post(PATH, {"name": "vendor", "value": value})).refused(400)
    assert [detail["field"] for detail in problem["details"]] == ["value"]
    assert value not in str(problem)
    (await plane.delete(f"{ENDPOINTS}/{endpoint['id']}")).ok()
    (await plane.post(PATH, {"name": "vendor", "value": value})).ok()


async def test_a_secret_with_lines_never_meets_an_endpoint_that_is_written_meanwhile(plane: ControlPlane) -> None:
    """Whichever is written first, the other is refused."""
    for number in range(10):
        name = f"s{number}"
        slug = f"acme/a{number}"
        id = (await plane.post(PATH, {"name": name, "value": "one line"})).ok()["id"]
        rotation, creation = await asyncio.gather(
            plane.post(PATH, {"name": name, "value": "two\nlines"}),
            plane.post(ENDPOINTS, {"slug": slug, "targets": [TARGET | {"secret_id": id}]}),
        )
        assert sorted((rotation.status, creation.status)) == [200, 400]


async def test_an_endpoint_that_names_a_secret_no_key_opens_is_503(sqlite_plane: ControlPlane) -> None:
    id = await sqlite_plane.secret()
    async with sqlite_plane.store.write() as tx:
        await tx.conn.execute(update(tables.secrets).values(ciphertext=seal([b"x" * 32], id, "sk", b"n" * 12)))
    body = {"slug": "acme/a", "targets": [TARGET | {"secret_id": id}]}
    (await sqlite_plane.post(ENDPOINTS, body)).refused(503, "SECRET_UNREADABLE")


def service_account(key: rsa.RSAPrivateKey) -> str:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"client_email": "bot@p.example", "private_key": pem, "token_uri": "https://oauth.example/token"}
    return base64.b64encode(json.dumps(account).encode()).decode()


async def test_deleting_a_secret_in_use_is_refused(plane: ControlPlane) -> None:
    secret_id = await plane.secret("vendor")
    target = {"provider": "VENDOR_B", "secret_id": secret_id, "target_model": "m"}
    endpoint = (await plane.post(ENDPOINTS, {"slug": "acme/x", "targets": [target]})).ok()
    (await plane.delete(f"{PATH}/vendor")).refused(409, "CONFLICT")
    (await plane.delete(f"{ENDPOINTS}/{endpoint['id']}")).ok()
    (await plane.delete(f"{PATH}/vendor")).ok()


async def test_concurrent_delete_and_use_leave_no_dangling_reference(plane: ControlPlane) -> None:
    for number in range(5):
        name = f"v{number}"
        target = {"provider": "VENDOR_B", "secret_id": await plane.secret(name), "target_model": "m"}
        creation, deletion = await asyncio.gather(
            plane.post(ENDPOINTS, {"slug": f"acme/{name}", "targets": [target]}), plane.delete(f"{PATH}/{name}")
        )
        assert (creation.status, deletion.status) in ((200, 409), (400, 200)), (creation, deletion)


async def test_concurrent_puts_of_one_name_store_one_secret(plane: ControlPlane) -> None:
    answers = await asyncio.gather(*(plane.post(PATH, {"name": "n", "value": f"v{i}"}) for i in range(6)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body["id"] for answer in answers}) == 1
    ((id, sealed),) = (await ciphertexts(plane)).items()
    assert unseal(SECRET_KEYS, id, sealed) in {f"v{i}" for i in range(6)}


async def test_a_name_belongs_to_its_workspace(plane: ControlPlane) -> None:
    await plane.secret("mine")
    key = (await plane.another_workspace())["api_key"]
    (await plane.delete(f"{PATH}/mine", key=key)).refused(404)
    assert (await plane.get(PATH, key=key)).ok()["items"] == []


async def test_reencryption_seals_every_value_under_the_first_key(plane: ControlPlane) -> None:
    for number in range(3):
        (await plane.post(PATH, {"name": f"n{number}", "value": f"v{number}"})).ok()
    new = (b"n" * 32,)
    assert await reencrypt_all(plane.store, new + SECRET_KEYS) == {"reencrypted": 3}
    values = {unseal(new, id, sealed) for id, sealed in (await ciphertexts(plane)).items()}
    assert values == {"v0", "v1", "v2"}
    before = await ciphertexts(plane)
    with pytest.raises(SealedWithUnknownKeyError):
        await reencrypt_all(plane.store, (b"x" * 32,))
    assert await ciphertexts(plane) == before


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".", "x" * 256, " x", "ä", "a\nb"])
async def test_a_name_unfit_for_a_path_is_refused(sqlite_plane: ControlPlane, name: str) -> None:
    (await sqlite_plane.post(PATH, {"name": name, "value": "v"})).refused(400)


@pytest.mark.parametrize("name", ["a b", "a.b_c-d@e:f", "x" * 255])
async def test_a_secret_is_deleted_by_any_legal_name(sqlite_plane: ControlPlane, name: str) -> None:
    (await sqlite_plane.post(PATH, {"name": name, "value": "v"})).ok()
    assert (await sqlite_plane.delete(f"{PATH}/{name}")).ok()["name"] == name


async def test_a_value_is_compared_and_not_shown(plane: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    (await plane.post(PATH, {"name": "vendor", "value": VALUE})).ok()
    other = (await plane.another_workspace())["api_key"]
    for name, value, key, expected in (
        ("vendor", VALUE, plane.key, (True, True)),
        ("vendor", VALUE[:-1], plane.key, (True, False)),
        ("vendor", "ü", plane.key, (True, False)),
        ("none", VALUE, plane.key, (False, False)),
        ("vendor", VALUE, other, (False, False)),
    ):
        answer = (await plane.post(f"{PATH}/compare", {"name": name, "value": value}, key=key)).ok()
        assert answer == {"name": name, "exists": expected[0], "equal": expected[1]}
    assert VALUE not in caplog.text
    assert VALUE not in str(await plane.post(f"{PATH}/compare", {"name": "vendor", "value": VALUE, "more": 1}))


async def test_a_secret_named_compare_can_be_deleted(sqlite_plane: ControlPlane) -> None:
    (await sqlite_plane.post(PATH, {"name": "compare", "value": "v"})).ok()
    (await sqlite_plane.delete(f"{PATH}/compare")).ok()


async def test_a_sealed_value_that_no_key_opens_cannot_be_compared(sqlite_plane: ControlPlane) -> None:
    (await sqlite_plane.post(PATH, {"name": "vendor", "value": VALUE})).ok()
    await reencrypt_all(sqlite_plane.store, (b"n" * 32, *SECRET_KEYS))
    answer = await sqlite_plane.post(f"{PATH}/compare", {"name": "vendor", "value": VALUE})
    answer.refused(503, "SECRET_UNREADABLE")
