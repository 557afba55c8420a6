"""`tollgate doctor` at real Redis servers, databases, disks and sockets: what it finds, and that it changes nothing."""

import asyncio
import json
import os
import secrets
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis.asyncio import Redis
from sqlalchemy import insert

from control.edges.inspection.database_look import look_at_database
from control.edges.inspection.disk_look import look_at_disk
from control.edges.inspection.redis_look import look_at_redis
from control.edges.inspection.upstream_look import Origin, UpstreamLooks
from control.edges.sql import tables
from control.edges.sql.migrations.migrate import LATEST, migrate
from control.edges.sql.store import Store
from control.operator.cli import tollgate
from control.operator.doctor.server_rules import redis_findings
from policy.hosts import EgressRules, Reach
from policy.sealing import seal
from runtime.redis.node_clients import ask
from tests.ports import HOST, own_port
from tests.postgres_server import MISSING, find_binaries, running_postgres
from tests.redis_cluster import CLUSTER_BINARY, running_cluster
from tests.redis_cluster import MISSING as MISSING_CLUSTER
from tests.redis_patience import be_patient
from tests.redis_sentinel import running_sentinels
from tests.redis_server import RedisServer, private_redis

KEY = bytes(32)
OTHER_KEY = bytes([1] * 32)
TARGET = json.dumps({"provider": "VENDOR_B", "secret_id": "sec_1", "target_model": "m"})
PASSWORD = "the-password-of-redis"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with private_redis(("--appendonly", "yes")) as server:
        yield server


async def fill(url: str) -> None:
    """A workspace with a secret, sealed under KEY, and an endpoint at VENDOR_B."""
    store = Store.at(url)
    await migrate(store.engine)
    when = {"created_at_ms": 1, "updated_at_ms": 1}
    sealed = seal([KEY], "sec_1", "the secret's value", bytes(12))
    workspace = {"id": "ws_1", "name": "acme", "tier": "basic", "billing": "active", "onboarded": True}
    async with store.write() as tx:
        await tx.conn.execute(insert(tables.workspaces).values(**workspace, created_at_ms=1))
        values = {"id": "sec_1", "workspace_id": "ws_1", "name": "k", "ciphertext": sealed, **when}
        await tx.conn.execute(insert(tables.secrets).values(**values))
        values = {
            "id": "ep_1",
            "workspace_id": "ws_1",
            "slug": "acme/a",
            "target": TARGET,
            "secret_id": "sec_1",
            **when,
        }
        await tx.conn.execute(insert(tables.endpoints).values(**values))
    await store.close()


def doctor(data: Path, settings: Mapping[str, str]) -> tuple[int, dict[str, list[Any]], str]:
    """The exit status, the findings by their check, and all that was printed."""
    ours = dict.fromkeys((name for name in os.environ if name.startswith("TOLLGATE_")), None)
    result = CliRunner().invoke(tollgate, ["doctor", "--data", str(data), "--json"], env={**ours, **settings})
    findings: dict[str, list[Any]] = {}
    for finding in json.loads(result.stdout)["findings"]:
        findings.setdefault(finding["check"], []).append((finding["level"], finding["text"]))
    return result.exit_code, findings, result.output


def test_doctor_judges_a_data_directory_and_changes_nothing(tmp_path: Path, redis: RedisServer) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    asyncio.run(fill(f"sqlite+aiosqlite:///{data / 'control.db'}"))
    (data / "secret.key").write_text(b64encode(OTHER_KEY).decode())
    before = {path.name: path.stat().st_mtime_ns for path in data.iterdir()}
    settings = {
        "TOLLGATE_REDIS_URL": redis.url,
        "TOLLGATE_VENDOR_B_BASE_URL": f"http://127.0.0.1:{own_port()}",
        "TOLLGATE_MAX_PARKD": "1",
    }
    status, findings, _ = doctor(data, settings)
    assert status == 1
    assert {path.name: path.stat().st_mtime_ns for path in data.iterdir()} == before
    assert findings["settings"] == [
        ("warning", "TOLLGATE_MAX_PARKD is not a setting and is ignored"),
    ] + [finding for finding in findings["settings"] if finding[0] == "ok"]
    assert findings["secrets"] == [("fault", "1 of the newest secrets cannot be opened")]
    assert [level for level, _ in findings["redis"]] == ["ok"]
    ((level, text),) = findings["upstreams"]
    assert (level, "(acme/a)" in text) == ("fault", True)


def test_doctor_names_wrong_settings_and_never_their_values(tmp_path: Path) -> None:
    settings = {
        "TOLLGATE_REDIS_URL": f"redis://:{PASSWORD}@127.0.0.1:{own_port()}",
        "TOLLGATE_DATABASE_URL": f"postgresql://u:{PASSWORD}@127.0.0.1:{own_port()}/x",
        "TOLLGATE_SECRET_KEY": PASSWORD,
        "TOLLGATE_MAX_PARKED": PASSWORD,
        "TOLLGATE_CONTROL_URL": f"http://127.0.0.1:{own_port()}",
    }
    status, findings, printed = doctor(tmp_path / "none", settings)
    assert status == 1
    assert {check: findings[check][0][0] for check in ("settings", "redis", "database", "control")} == {
        "settings": "fault",
        "redis": "fault",
        "database": "fault",
        "control": "fault",
    }
    assert PASSWORD not in printed
    assert not (tmp_path / "none").exists()


async def test_malformed_redis_url_is_not_quoted() -> None:
    (look,) = await look_at_redis(f"redis://user:{PASSWORD}#x@127.0.0.1:1")
    assert look.trouble
    assert PASSWORD not in look.trouble


async def test_redis_url_without_a_host_is_said_to_have_none() -> None:
    for url in (f"redis+cluster://user:{PASSWORD}@one,", "redis+sentinel://,one/gateway"):
        (look,) = await look_at_redis(url)
        assert "a Redis host name is missing" in look.trouble
        assert PASSWORD not in str(look)


async def test_redis_user_without_info_is_still_looked_at() -> None:
    with private_redis() as server:
        async with Redis.from_url(server.url) as admin:
            await ask(admin, "ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-info")
        (look,) = await look_at_redis(server.url.replace("unix://", "unix://plain:pw@"))
    assert (look.trouble, look.info) == ("", {})
    assert abs(look.ahead_s) < 1
    assert look.may_wait


async def test_redis_user_without_wait_is_noticed() -> None:
    with private_redis() as server:
        server.run("ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-wait")
        (look,) = await look_at_redis(server.url.replace("unix://", "unix://plain:pw@"))
    assert not look.may_wait


@pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING_CLUSTER)
async def test_each_primary_of_a_cluster_is_looked_at() -> None:
    with running_cluster(replicas=0) as cluster:
        dead, full, alone = cluster.primaries
        names = {node.port: f"{HOST}:{node.port}" for node in cluster.primaries}
        assert {look.node for look in await look_at_redis(cluster.url)} == set(names.values())
        dead.server.kill()
        full.run("CONFIG", "SET", "maxmemory", 1)
        texts = [finding.text for finding in redis_findings(await look_at_redis(cluster.url), "redis", "URL")]
        assert any(text.startswith(f"{names[dead.port]}: unusable: ") for text in texts)
        assert any(text.startswith(f"{names[full.port]}: ") and "of its maxmemory" in text for text in texts)
        assert f"{names[alone.port]}: it has no replica: nothing replaces it when it dies" in texts
        full.run("CLUSTER", "DELSLOTS", 16_383)
        looks = await look_at_redis(f"redis+cluster://{names[full.port]}")
        assert any(look.trouble == "1 slots of the cluster are served by no node" for look in looks)


async def test_primary_of_sentinels_is_looked_at() -> None:
    with running_sentinels() as sentinels:
        (look,) = await look_at_redis(sentinels.url)
        assert look.node == f"{HOST}:{sentinels.primary_port}"
        assert look.info["connected_slaves"] == 2


@pytest.mark.skipif(find_binaries() is None, reason=MISSING)
async def test_postgresql_is_looked_at() -> None:
    with running_postgres() as server:
        url = await server.create_database("doctor")
        assert (await look_at_database(url, ())).schema is None
        await fill(url)
        look = await look_at_database(url, [KEY])
        assert (look.trouble, look.kind, look.schema, look.unreadable_secrets) == ("", "postgresql", LATEST, 0)
        assert [slug for slug, _ in look.targets] == ["acme/a"]
        assert look.size_bytes > 1_000_000
        server.stop()
        assert (await look_at_database(url, [KEY])).trouble


async def test_upstreams_are_reached_only_where_a_proxy_would_and_get_no_byte() -> None:
    received: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    origins = [Origin.of(f"http://127.0.0.1:{port}/path", reach) for reach in (Reach.OPERATOR, Reach.REPLICA)]
    tls = Origin.of(f"https://127.0.0.1:{port}", Reach.OPERATOR)
    looks = await UpstreamLooks(EgressRules()).look_at([*origins, *origins])
    allowed = await UpstreamLooks(EgressRules.parse("127.0.0.0/8")).look_at(origins)
    server.close()
    closed = await UpstreamLooks(EgressRules()).look_at([tls])
    assert [look.trouble.partition(":")[0] for look in looks.values()] == ["", "it may not be dialled"]
    assert [look.trouble for look in allowed.values()] == ["", ""]
    assert closed[tls].trouble
    assert set(received) == {b""}


def test_directory_that_is_missing_is_looked_at_where_it_would_be(tmp_path: Path) -> None:
    look = look_at_disk(tmp_path / "no" / "such" / secrets.token_hex(4))
    assert (look.path, look.trouble) == (tmp_path, "")
    assert look.free_bytes > 0
    assert list(tmp_path.iterdir()) == []
