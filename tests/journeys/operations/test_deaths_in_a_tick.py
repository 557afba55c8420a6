"""A worker is killed inside a tick, at a chosen system call: between the journal's write of many calls and their sends.

`strace` delivers SIGKILL as the n-th write to the journal, or to any socket, begins.
"""

import asyncio
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest

from tests.journeys.conftest import Stage
from tests.waiting import eventually

CALLS = 24
OUTPUT_TOKENS = 10
JOURNAL = "pwrite64"
SOCKETS = "write,writev,sendto,sendmsg"
MOMENTS = [(JOURNAL, 1), (JOURNAL, 3), (SOCKETS, 12), (SOCKETS, 40)]
STRACE = shutil.which("strace")
STRACE_ENDS_S = 10


@contextmanager
def killed_at(pid: int, calls: str, number: int) -> Iterator[None]:
    """Kill the process as its `number`-th of these system calls begins."""
    inject = f"inject={calls}:signal=KILL:when={number}"
    argv = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={calls}", "-e", inject, "-p", str(pid)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        assert "attached" in line, f"strace cannot trace a process of this user: {line}"
        try:
            yield
        finally:
            tracer.terminate()
            try:
                tracer.wait(STRACE_ENDS_S)
            except subprocess.TimeoutExpired:  # it can hang while its tracee dies
                tracer.kill()


async def asked(stage: Stage, key: str) -> str:
    """The request id of an answered call; "" if the connection broke off."""
    body = b'{"model":"%b","messages":[{"role":"user","content":"Hello"}]}' % stage.slug.encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    url = stage.product.proxy + "/v1/chat/completions"
    try:
        async with stage.session.post(url, data=body, headers=headers) as answer:
            await answer.read()
            assert answer.status == 200, await answer.text()
            return answer.headers["x-request-id"]
    except aiohttp.ClientError:
        return ""


async def asked_until_a_worker_dies(stage: Stage, key: str, calls: str, number: int) -> set[str]:
    """The request ids of the answered calls. Both workers are to die; one may get too few calls.

    Calls that share their ticks make few system calls, so more are made until one dies.
    """
    workers = stage.product.processes("proxy.worker")
    answered = set[str]()

    async def ask_and_look() -> bool:
        answered.update(await asyncio.gather(*(asked(stage, key) for _ in range(CALLS))))
        return set(stage.product.processes("proxy.worker")) != set(workers)

    with killed_at(workers[0], calls, number), killed_at(workers[1], calls, number):
        await eventually(ask_and_look, "a worker died")
    await stage.until(stage.all_parts_ready, "two workers again")
    return answered


@pytest.mark.skipif(STRACE is None, reason="no strace (Debian: strace)")
async def test_worker_killed_within_a_tick_bills_each_call_that_left_once(killable_stage: Stage) -> None:
    stage = killable_stage
    key = await stage.key_without_limits()
    answered = {await asked(stage, key)}
    for calls, number in MOMENTS:
        answered |= await asked_until_a_worker_dies(stage, key, calls, number)
    answered.discard("")
    request_ids = {dict(received.headers)["x-request-id"] for received in stage.upstream.received}
    assert answered <= request_ids

    async def all_listed() -> bool:  # not by their number: a call that died before it left is listed, too
        return request_ids <= {event["requestId"] for event in await stage.events_of(stage.name, len(request_ids))}

    await eventually(all_listed, "each request that left is listed; else it left before its open record was written")
    await asyncio.sleep(1.5)  # longer than the holdback: a duplicate event would be listed by now
    all_events = await stage.events_of(stage.name, len(request_ids))
    events = {event["requestId"]: event for event in all_events}
    listed = Counter(event["requestId"] for event in all_events)
    assert set(listed.values()) == {1}
    ends = {events[one]["tokens"]["outputTokens"] for one in answered}
    assert ends == {OUTPUT_TOKENS}, "an answer left before its close record was written"
    assert set(listed) > answered, "no call died with its worker"
