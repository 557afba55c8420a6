"""Two machines with a proxy each, one control: a deployment is woken once for both, and its replicas serve both."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.replicas.crowd import TOTAL, Crowd, WakeHook
from tests.journeys.replicas.model_servers import ModelServers
from tests.journeys.second_machine import second_proxy, serves


@pytest.fixture
def second_machine(crowd: Crowd, tmp_path: Path) -> Iterator[str]:
    with second_proxy(crowd.stage.product, tmp_path / "second", workers=1) as url:
        yield url


async def test_calls_parked_on_two_machines_are_woken_once_and_all_are_answered(
    crowd: Crowd, second_machine: str, servers: ModelServers, hook: WakeHook
) -> None:
    stage = crowd.stage

    async def up() -> bool:
        return await serves(stage.session, second_machine, crowd.keys["noisy"])

    await stage.until(up, "the second proxy serves")
    crowd.proxies.append(second_machine)
    crowd.arrive()
    await crowd.until_parked(TOTAL)

    async def asked() -> list[Any]:
        return hook.requests

    await stage.until(asked, "the hook is asked")
    server = servers.start()
    await stage.operator.call("PUT", f"{crowd.deployment}/replicas", {"replicas": [server.url]})
    assert await crowd.all_ended() == {200: TOTAL}
    assert len(hook.requests) == 1
    assert Counter(servers.received().values()) == {1: TOTAL}
