"""Two machines with a proxy each, one control: a deployment is woken once for both, and its replicas serve both."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.product import ended, spawn
from tests.journeys.replicas.crowd import TOTAL, Crowd, WakeHook
from tests.journeys.replicas.model_servers import ModelServers
from tests.ports import own_port


@pytest.fixture
def second_machine(crowd: Crowd, tmp_path: Path) -> Iterator[str]:
    """The URL of a second proxy, with files of its own, beside the one of `up`."""
    product = crowd.stage.product
    (pid,) = (pid for pid in product.processes("-m proxy ") if b"proxy.worker" not in _file(pid, "cmdline"))
    environment = dict(entry.split("=", 1) for entry in _file(pid, "environ").decode().split("\0") if "=" in entry)
    for name in ("TOLLGATE_JOURNAL_DIR", "TOLLGATE_REPLICA_PATH"):
        environment.pop(name, None)
    proxy, admin = str(own_port()), str(own_port())
    words = ("proxy", "--data", str(tmp_path / "second"), "--proxy-port", proxy, "--admin-port", admin)
    process = spawn((*words, "--workers", "1"), environment, tmp_path / "second.log")
    yield f"http://127.0.0.1:{proxy}"
    process.terminate()
    assert ended(process) == 0


def _file(pid: int, name: str) -> bytes:
    return (Path("/proc") / str(pid) / name).read_bytes()


async def test_calls_parked_on_two_machines_are_woken_once_and_all_are_answered(
    crowd: Crowd, second_machine: str, servers: ModelServers, hook: WakeHook
) -> None:
    stage = crowd.stage

    async def up() -> bool:
        try:
            async with stage.session.get(second_machine + "/v1/models", headers=_bearer(crowd.keys["noisy"])) as answer:
                return answer.status == 200
        except OSError:
            return False

    await stage.until(up, "the second proxy serves")
    crowd.proxies.append(second_machine)
    crowd.arrive()
    await crowd.until_parked(TOTAL)

    async def asked() -> list[Any]:
        return hook.asked

    await stage.until(asked, "the hook is asked")
    server = servers.start()
    await stage.operator.call("PUT", f"{crowd.deployment}/replicas", {"replicas": [server.url]})
    assert await crowd.all_ended() == {200: TOTAL}
    assert len(hook.asked) == 1
    assert Counter(servers.received().values()) == {1: TOTAL}


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
