"""Interactive sessions as a person at a browser uses them: a code, once, then a shell on the node."""

import json
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.journeys.training.scene import Job, Training
from tests.waiting import eventually


async def auth_codes(job: Job) -> list[Any]:
    return list((await job.training.operator.call("GET", f"{job.path}/auth_codes"))["auth_codes"])


async def opened(session: aiohttp.ClientSession, url: str, code: str) -> int:
    """Enter the code on the page; the cookie it buys stays in the session's jar. Returns the status."""
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    async with session.post(url, data={"code": code}, headers={"Origin": origin}) as answer:
        return answer.status


async def typed(session: aiohttp.ClientSession, url: str, line: str, until: str) -> str:
    """Type a line into a new shell; what it shows, up to `until`."""
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    output = ""
    async with session.ws_connect(f"{url}/terminal", headers={"Origin": origin}) as socket:
        await socket.send_bytes(line.encode() + b"\n")
        while until not in output:
            message = await socket.receive(timeout=30)
            assert message.type is aiohttp.WSMsgType.BINARY, (message, output)
            output += message.data.decode()
            await socket.send_str(json.dumps({"type": "read", "bytes": len(message.data)}))
    return output


async def test_code_opens_a_shell_on_the_node_once(training: Training) -> None:
    job = await training.create("touch made-here; echo begun; sleep 300")
    await job.logged("begun")
    assert await auth_codes(job) == []
    await training.operator.call("POST", f"{job.path}/interactive_session")
    (entry,) = await auth_codes(job)
    assert entry["replica_id"] == "g00r0"

    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        assert await opened(browser, entry["auth_url"], entry["auth_code"]) == 200
        output = await typed(browser, entry["auth_url"], "ls; echo id=$TOLLGATE_JOB_ID.", f"id={job.id}.")
        assert "made-here" in output
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as another:
        assert await opened(another, entry["auth_url"], entry["auth_code"]) == 403

    await job.stop()
    await job.until("STOPPED")
    assert await auth_codes(job) == []
    async with aiohttp.ClientSession() as late, late.get(entry["auth_url"]) as answer:
        assert answer.status == 404


async def test_failed_node_is_kept_for_its_session_until_the_job_is_stopped(training: Training) -> None:
    session = {"trigger": "on_failure", "timeout_minutes": 5}
    job = await training.create("echo why > reason; exit 9", interactive_session=session)

    async def offered() -> list[Any]:
        return await auth_codes(job)

    (entry,) = await eventually(offered, training.product.log_tail, every_s=0.05)
    state = await job.read()
    assert state["current_status"] == "TRAINING_JOB_RUNNING"
    assert "9" in state["error_message"]
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        assert await opened(browser, entry["auth_url"], entry["auth_code"]) == 200
        await typed(browser, entry["auth_url"], "cat reason | tr a-z A-Z", "WHY")

    await job.stop()
    assert "9" in (await job.until("FAILED"))["error_message"]
