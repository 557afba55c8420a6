"""A deployment's health as its operator sees it: statuses and counts follow probes, calls go to what is healthy."""

from collections import Counter
from typing import Any

from tests.journeys.replicas.crowd import Crowd
from tests.journeys.replicas.model_servers import ModelServers


async def shows(crowd: Crowd, status: str, active: int) -> None:
    """Wait until the deployment has this status and this many active replicas."""

    async def look() -> bool:
        deployment = await crowd.stage.operator.call("GET", crowd.deployment)
        return (deployment["status"], deployment["active_replica_count"]) == (status, active)

    await crowd.stage.until(look, f"{status} with {active} active replicas")


async def ask(crowd: Crowd, name: str, count: int) -> Counter[int]:
    """Make `count` calls one after another; return their statuses."""
    for number in range(count):
        crowd.call_slug("quiet-1", f"{name}.{number}")
        await crowd.tasks[f"{name}.{number}"]
    return Counter(crowd.answers[f"{name}.{number}"] for number in range(count))


async def test_status_and_calls_follow_the_health_of_replicas_that_nobody_calls(
    crowd: Crowd, servers: ModelServers
) -> None:
    one = servers.start(healthy=False)
    other = servers.start(healthy=False)
    listed = {"replicas": [one.url, other.url]}
    assert (await crowd.stage.operator.call("PUT", f"{crowd.deployment}/replicas", listed))["status"] == "LOADING_MODEL"
    one.become_healthy()
    await shows(crowd, "ACTIVE", 1)
    assert await ask(crowd, "first", 5) == {200: 5}
    other.become_healthy()
    await shows(crowd, "ACTIVE", 2)
    one.healthy_file.unlink()
    await shows(crowd, "ACTIVE", 1)
    before = len(one.received())
    assert await ask(crowd, "second", 5) == {200: 5}
    assert len(one.received()) == before, "the one that is not healthy gets no call"
    other.kill()
    await shows(crowd, "UNHEALTHY", 0)
    assert await ask(crowd, "third", 2) == {503: 2}
    one.become_healthy()
    await shows(crowd, "ACTIVE", 1)
    assert await ask(crowd, "fourth", 5) == {200: 5}


async def test_each_call_leaves_one_line_in_the_log_of_its_deployment(crowd: Crowd, servers: ModelServers) -> None:
    server = servers.start()
    await crowd.stage.operator.call("PUT", f"{crowd.deployment}/replicas", {"replicas": [server.url]})
    await shows(crowd, "ACTIVE", 1)
    assert await ask(crowd, "logged", 3) == {200: 3}

    async def lines() -> list[Any]:
        entries = (await crowd.stage.operator.call("POST", f"{crowd.deployment}/logs", {}))["logs"]
        return entries if len(entries) >= 3 else []

    logged = await crowd.stage.until(lines, "three lines")
    assert {line["request_id"] for line in logged} == {"logged.0", "logged.1", "logged.2"}
    assert {(line["level"].upper(), line["replica"]) for line in logged} == {("INFO", server.url)}
    assert all(line["message"].startswith("POST /v1/chat/completions 200 in ") for line in logged)
