"""The supervisor's check of TOLLGATE_SECRET_KEY, on a real replica with rows as control publishes them."""

from pathlib import Path

import pytest

from policy.sealing import seal
from policy.snapshot import Row, SecretRow, SigningSecrets, WorkspaceRow
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.edges.policy.supervisor.secret_probe import SecretProbe
from proxy.records.supervisor.findings import OK, Finding
from proxy.records.supervisor.policy_replica import ReplicaVersion

OURS = (b"k" * 32,)
OTHERS = (b"x" * 32,)
VERSION = ReplicaVersion("e", 1, "n")


def sealed(id: str, keys: tuple[bytes, ...]) -> str:
    return seal(keys, id, "value", b"n" * 12)


def secret(id: str, keys: tuple[bytes, ...] = OURS) -> Row:
    return Row("secret", id, 1, SecretRow(id, "ws", sealed(id, keys)).to_wire())


def workspace(id: str, signing: SigningSecrets | None) -> Row:
    return Row("workspace", id, 1, WorkspaceRow(id, "active", "basic", True, None, signing).to_wire())


def signed(id: str, keys: tuple[bytes, ...] = OURS) -> Row:
    return workspace(id, SigningSecrets(sealed(id, keys), sealed(id, OTHERS), 1))


async def finding(path: Path, *rows: Row) -> Finding:
    replica = PolicyReplica(path / "replica.db")
    update = replica.begin_update(reset=True)
    update.add(rows)
    update.commit(VERSION)
    try:
        return await SecretProbe(path / "replica.db", OURS).finding(VERSION)
    finally:
        replica.close()


async def test_secrets_that_open_are_no_finding(tmp_path: Path) -> None:
    """A previous signing secret may outlive its key."""
    assert await finding(tmp_path, workspace("w", None), secret("s"), signed("v")) == OK


@pytest.mark.parametrize("rows", [(secret("s"), signed("w", OTHERS)), (secret("s", OTHERS), signed("w"))])
async def test_some_secrets_that_do_not_open_degrade(tmp_path: Path, rows: tuple[Row, ...]) -> None:
    report = await finding(tmp_path, *rows)
    assert report.degraded.startswith("1 of 2 stored secrets cannot be opened")
    assert not report.fault


async def test_a_wrong_key_is_found_by_signing_secrets_alone(tmp_path: Path) -> None:
    report = await finding(tmp_path, workspace("v", None), signed("w", OTHERS))
    assert report.fault.startswith("1 of 1 stored secrets cannot be opened")
