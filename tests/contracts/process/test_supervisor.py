"""The proxy as real processes: supervisor, workers, Redis, a control plane and an upstream in this process.

Processes are killed and drained: queued connections are answered, no worker outlives the supervisor, and a drain
finishes the calls in flight.
"""

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis

from policy.credentials import KeyKind, digest_of
from policy.endpoints import Target
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.prices import Price, token_prices
from policy.sealing import seal
from policy.snapshot import EndpointRow, KeyRow, PriceRow, SecretRow, WorkspaceRow, group_to_wire
from proxy.edges.policy.supervisor.hints import CHANNEL
from proxy.supervisor.refresher import ON_DEMAND_GAP_S
from tests.fakes.control_plane import TOKEN, FakeControl, serve_control
from tests.ports import own_port
from tests.processes import is_running
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis
from tests.upstream import ScriptedUpstream, answer_json, gated
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server: apt-get install redis-server")

SECRET_KEY = b"k" * 32
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
ANSWER = {"id": "c", "object": "chat.completion", "model": "gpt", "choices": [], "usage": USAGE}


def make_key(number: int) -> str:
    return f"tg_{number:012d}.{'s' * 32}"


class Proxy:
    """`python -m proxy` and a client for it."""

    def __init__(self, folder: Path, environ: dict[str, str], client: aiohttp.ClientSession) -> None:
        self.folder = folder
        self.environ = environ
        self.client = client
        self.port = own_port()
        self.admin_port = own_port()
        self.process: asyncio.subprocess.Process | None = None
        self.log = folder / "proxy.log"

    async def start(self, workers: int = 1, *, ready: bool = True, **changes: str) -> None:
        flags = {
            "--proxy-port": self.port,
            "--admin-port": self.admin_port,
            "--workers": workers,
            "--data": self.folder / "data",
        }
        words = [str(word) for pair in flags.items() for word in pair]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "proxy", *words, env=self.environ | changes, stderr=log, stdout=log
            )
        if ready:
            await self.until_ready()

    async def until_ready(self) -> None:
        await eventually(self._is_ready)

    async def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.returncode is None, self.log.read_text()
        return (await self.admin("/readyz"))[0] == 200

    async def admin(self, path: str) -> tuple[int, str]:
        try:
            async with self.client.get(f"http://127.0.0.1:{self.admin_port}{path}") as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""

    async def call(self, key: str = make_key(1), slug: str = "org/m") -> tuple[int, Any]:
        body = {"model": slug, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        async with self.client.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    def workers(self) -> list[int]:
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    async def metric(self, name: str) -> float:
        lines = [line for line in (await self.admin("/metrics"))[1].splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()


class World:
    def __init__(self, control: FakeControl, upstream: ScriptedUpstream, redis: RedisServer, proxy: Proxy) -> None:
        self.control = control
        self.upstream = upstream
        self.redis = redis
        self.proxy = proxy
        self.events: list[dict[str, Any]] = control.events

    async def hint(self) -> None:
        client = Redis.from_url(self.redis.url)
        await client.publish(CHANNEL, str(self.control.revision))
        await client.aclose()


def fill(control: FakeControl) -> None:
    control.put("workspace", "ws", WorkspaceRow("ws", "active", "basic", True).to_wire())
    control.put("secret", "s", SecretRow("s", "ws", seal((SECRET_KEY,), "s", "sk-up", b"n" * 12)).to_wire())
    target = Target("VENDOR_B", secret_id="s", target_model="gpt")
    control.put("endpoint", "org/m", EndpointRow("org/m", "e", "ws", target).to_wire())
    models = (SlugLimits("org/m", (Limit(LimitType.REQUEST, Unit.MINUTE, 1000),)),)
    control.put("group", "g", group_to_wire(Group("g", "ws", None, "customer", Enforcement.CASCADING, models)))
    mint(control, 1)


def mint(control: FakeControl, number: int) -> str:
    key = make_key(number)
    row = KeyRow(digest_of(key), key.partition(".")[0], KeyKind.FEDERATED, "ws", "g")
    control.put("key", row.digest, row.to_wire())
    return key


@asynccontextmanager
async def a_world(folder: Path, redis: RedisServer) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        control = FakeControl()
        fill(control)
        upstream = await stack.enter_async_context(ScriptedUpstream(default=gated(answer_json(200, ANSWER))))
        control_url = await stack.enter_async_context(serve_control(control))
        environ = os.environ | {
            "TOLLGATE_REDIS_URL": redis.url,
            "TOLLGATE_CONTROL_URL": control_url,
            "TOLLGATE_INTERNAL_TOKEN": TOKEN,
            "TOLLGATE_SECRET_KEY": base64.b64encode(SECRET_KEY).decode(),
            "TOLLGATE_VENDOR_B_BASE_URL": upstream.url,
            "TOLLGATE_DRAIN_TIMEOUT_S": "5",
            "TOLLGATE_READY_GRACE_S": "0",
            "TOLLGATE_ASYNC_WORKERS": "0",
        }
        client = await stack.enter_async_context(aiohttp.ClientSession())
        proxy = Proxy(folder, environ, client)
        try:
            yield World(control, upstream, redis, proxy)
        finally:
            upstream.gate.open()
            if proxy.process is not None:
                await proxy.stop(signal.SIGKILL)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with private_redis() as redis:
        async with a_world(tmp_path, redis) as world:
            yield world


@pytest.mark.soak
async def test_call_is_answered_billed_and_counted(world: World) -> None:
    proxy = world.proxy
    await proxy.start(workers=2)
    status, body = await proxy.call()
    assert (status, body["model"]) == (200, "org/m"), proxy.log.read_text()
    assert await proxy.metric('platform_model_api_inference_requests_total{external_entity_id="customer"') == 1
    assert await proxy.metric("platform_model_api_tokens_total") == 7

    async def shipped() -> bool:
        return len(world.events) == 1

    await eventually(shipped)
    assert await proxy.stop() == 0
    logged = proxy.log.read_text()
    assert "sk-up" not in logged
    assert make_key(1) not in logged


async def test_hint_makes_a_change_live(world: World) -> None:
    await world.proxy.start()
    assert (await world.proxy.call())[0] == 200
    world.control.put("key", digest_of(make_key(1)), None)
    await world.hint()

    async def revoked() -> bool:
        return (await world.proxy.call())[0] == 403

    await eventually(revoked)


async def test_a_price_is_live_by_its_hint(world: World) -> None:
    """A call before it is unpriced; a call after it costs what it says."""
    proxy = world.proxy
    await proxy.start(workers=1)
    assert (await proxy.call())[0] == 200
    await eventually(lambda: counted(proxy, "tollgate_unpriced_calls_total", 1))
    price = Price("org/m", 0, "EUR", token_prices(Decimal(0), Decimal(0)), per_call=Decimal("0.25"))
    world.control.put("price", "org/m", PriceRow("org/m", "ws", (price,)).to_wire())
    await world.hint()

    async def costs() -> bool:
        assert (await proxy.call())[0] == 200
        return await proxy.metric('tollgate_spend_total{currency="EUR"') > 0

    await eventually(costs)


async def counted(proxy: Proxy, name: str, count: int) -> bool:
    return await proxy.metric(name) == count


async def test_newly_minted_key_works_without_a_hint(world: World) -> None:
    await world.proxy.start()
    await asyncio.sleep(1.1)  # longer than any recent confirmation could count
    assert (await world.proxy.call(mint(world.control, 2)))[0] == 200


async def test_unknown_keys_do_not_wait_for_each_other(world: World) -> None:
    """A second between two refreshes would make the last of these wait for longer than anybody does."""
    await world.proxy.start()
    async with asyncio.timeout(PATIENCE_S):
        for number in range(100, 101 + int(PATIENCE_S)):
            assert (await world.proxy.call(make_key(number)))[0] == 403


@pytest.mark.soak
async def test_flood_of_unknown_keys_causes_few_refreshes_and_blocks_no_new_key(world: World) -> None:
    await world.proxy.start(workers=2)
    request_count = len(world.control.requests)
    began = time.monotonic()
    flood = [asyncio.ensure_future(world.proxy.call(make_key(number))) for number in range(1000, 2000)]
    await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    assert (await world.proxy.call(mint(world.control, 2)))[0] == 200
    assert {status for status, _ in await asyncio.gather(*flood)} == {403}
    passed_s = time.monotonic() - began
    assert len(world.control.requests) - request_count <= 2 + passed_s / ON_DEMAND_GAP_S


async def test_without_control_known_keys_work_and_unknown_keys_get_503(world: World) -> None:
    await world.proxy.start()
    world.control.down = True
    await asyncio.sleep(1.1)
    assert (await world.proxy.call())[0] == 200
    assert (await world.proxy.call(make_key(2)))[0] == 503
    assert (await world.proxy.admin("/readyz"))[0] == 200
    assert await world.proxy.stop() == 0
    await world.proxy.start()  # a restart serves from the replica
    assert (await world.proxy.call())[0] == 200
    assert (await world.proxy.call(make_key(2)))[0] == 503


async def test_without_policy_the_answer_is_503_and_readyz_says_so(world: World) -> None:
    world.control.down = True
    await world.proxy.start(ready=False)

    async def workers_serve() -> bool:
        return '"workers": "ok"' in (await world.proxy.admin("/readyz"))[1]

    await eventually(workers_serve)
    status, report = await world.proxy.admin("/readyz")
    assert status == 503
    assert "no policy from control yet (policy is not refreshed: control answered 503" in report
    assert (await world.proxy.call())[0] == 503
    world.control.down = False
    await world.proxy.until_ready()
    assert (await world.proxy.call())[0] == 200


async def test_admin_port_answers_correctly_from_its_first_answer(world: World) -> None:
    """The start takes a second without Redis. A scrape meanwhile waits and gets no internal error."""
    world.redis.kill()
    await world.proxy.start(ready=False)
    answers: list[int] = []

    async def answered() -> bool:
        answers.extend([(await world.proxy.admin(path))[0] for path in ("/metrics", "/readyz")])
        return 200 in answers

    await eventually(answered)
    assert set(answers) <= {0, 200, 503}
    world.redis.start()


async def test_rejected_event_is_counted_by_a_metric(world: World) -> None:
    await world.proxy.start()
    assert await world.proxy.metric("tollgate_journal_rejected_events") == 0
    world.control.refused_group = "g"
    assert (await world.proxy.call())[0] == 200

    async def counted() -> bool:
        return await world.proxy.metric("tollgate_journal_rejected_events") == 1

    await eventually(counted)
    assert world.events == []


async def test_readyz_reports_that_redis_is_unreachable(world: World) -> None:
    await world.proxy.start()
    world.redis.kill()

    async def unready() -> bool:
        status, report = await world.proxy.admin("/readyz")
        return status == 503 and "Redis does not answer" in report

    await eventually(unready)
    assert (await world.proxy.call())[0] == 503
    assert (await world.proxy.admin("/healthz"))[0] == 200
    world.redis.start()
    await world.proxy.until_ready()


async def test_wrong_secret_key_is_not_ready_and_is_logged_once(world: World) -> None:
    await world.proxy.start(ready=False, TOLLGATE_SECRET_KEY=base64.b64encode(bytes(32)).decode())

    async def reported() -> bool:
        status, report = await world.proxy.admin("/readyz")
        return status == 503 and "1 of 1 stored secrets cannot be opened" in report

    await eventually(reported)
    await eventually(lambda: logged(world.proxy, "Not ready: secrets"))
    assert world.proxy.log.read_text().count("cannot be opened") == 1
    status, body = await world.proxy.call()
    assert (status, body["error_code"]) == (503, "TARGET_SECRET_UNAVAILABLE")


async def test_a_key_that_is_added_to_the_file_opens_secrets_without_a_restart(world: World, tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    other = b"o" * 32
    file.write_text(base64.b64encode(other).decode())
    await world.proxy.start(ready=False, TOLLGATE_SECRET_KEY="", TOLLGATE_SECRET_KEY_FILE=str(file))

    async def is_unready() -> bool:
        return (await world.proxy.admin("/readyz"))[0] == 503

    await eventually(is_unready)
    await eventually(lambda: logged(world.proxy, "Not ready: secrets"))
    file.write_text(",".join(base64.b64encode(key).decode() for key in (SECRET_KEY, other)))
    await world.proxy.until_ready()
    assert (await world.proxy.call())[0] == 200


async def test_call_with_a_secret_that_no_header_can_carry_says_so_and_the_log_names_it(world: World) -> None:
    sealed = seal((SECRET_KEY,), "s", "sk-up\n", b"n" * 12)
    world.control.put("secret", "s", SecretRow("s", "ws", sealed).to_wire())
    await world.proxy.start()
    for _ in range(3):
        status, body = await world.proxy.call()
        assert (status, body["error_code"]) == (503, "TARGET_SECRET_UNUSABLE")
    await eventually(lambda: logged(world.proxy, "Secret s cannot be sent in a header field"))
    text = world.proxy.log.read_text()
    assert text.count("Secret s cannot be sent") == 1
    assert "sk-up" not in text


async def test_redis_user_without_the_needed_commands_is_not_ready(world: World) -> None:
    """Redis's error names the command, and the log names the remedy, once each."""
    await acl(world, "-evalsha", "-eval")
    await world.proxy.start(ready=False)

    async def reported() -> bool:
        status, report = await world.proxy.admin("/readyz")
        return status == 503 and "no permissions to run the 'eval" in report

    await eventually(reported)
    for _ in range(20):
        assert (await world.proxy.call())[0] == 503
    await eventually(lambda: logged(world.proxy, "Not ready: redis"))
    assert world.proxy.log.read_text().count("the permissions of its user") == 1
    assert world.proxy.log.read_text().count("Redis refuses the counters' script") <= 3, "once per process and cause"
    await acl(world, "+@all")
    await world.proxy.until_ready()
    assert (await world.proxy.call())[0] == 200


async def test_degraded_check_is_ready_and_listed(world: World) -> None:
    await acl(world, "resetchannels")
    await world.proxy.start()
    await eventually(lambda: is_degraded(world.proxy, "hints: no subscription to tollgate:hints"))
    assert (await world.proxy.call())[0] == 200
    await acl(world, "&*")
    world.control.down = True
    await eventually(lambda: is_degraded(world.proxy, "control: policy is not refreshed"))
    assert (await world.proxy.admin("/readyz"))[0] == 200
    assert (await world.proxy.call())[0] == 200


async def test_readyz_says_that_policy_is_behind_while_much_of_it_is_fetched(world: World) -> None:
    """The check says so from the first fetch on, and whenever changes take several pages."""
    world.control.page_rows = 1
    world.control.later_pages = asyncio.Event()
    await world.proxy.start(ready=False)
    await eventually(lambda: says(world.proxy, "no policy from control yet (fetching it: 1 rows so far"))
    assert (await world.proxy.admin("/readyz"))[0] == 503
    world.control.later_pages.set()
    await world.proxy.until_ready()
    assert not await says(world.proxy, "behind")

    world.control.later_pages = asyncio.Event()
    for slug in ("acme/x", "acme/y"):
        world.control.put("endpoint", slug, None)
    await world.hint()
    await eventually(lambda: is_degraded(world.proxy, "policy: policy is behind control's"))
    assert (await world.proxy.admin("/readyz"))[0] == 200
    assert (await world.proxy.call())[0] == 200
    world.control.later_pages.set()
    await eventually(lambda: is_up_to_date(world.proxy))


async def says(proxy: Proxy, text: str) -> bool:
    return text in (await proxy.admin("/readyz"))[1]


async def is_up_to_date(proxy: Proxy) -> bool:
    return not await says(proxy, "behind")


async def acl(world: World, *rules: str) -> None:
    client = Redis.from_url(world.redis.url)
    await client.execute_command("ACL", "SETUSER", "default", *rules)  # type: ignore[no-untyped-call]  # redis-py's
    await client.aclose()


async def logged(proxy: Proxy, text: str) -> bool:
    return text in proxy.log.read_text()


async def is_degraded(proxy: Proxy, text: str) -> bool:
    degraded = json.loads((await proxy.admin("/readyz"))[1])["degraded"]
    return any(check.startswith(text) for check in degraded)


@pytest.mark.soak
async def test_killed_worker_is_replaced_and_loses_no_queued_connection(world: World) -> None:
    proxy = world.proxy
    await proxy.start()
    assert (await proxy.call())[0] == 200
    assert await proxy.metric("platform_model_api_inference_requests_total") == 1
    (worker,) = proxy.workers()
    os.kill(worker, signal.SIGSTOP)  # from here on connections wait in the listener's queue
    calls = [asyncio.create_task(proxy.call()) for _ in range(20)]

    async def queued() -> bool:
        return accept_queue(proxy.port) == 20

    await eventually(queued)
    os.kill(worker, signal.SIGKILL)
    assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 20
    assert proxy.workers() != [worker]
    assert await proxy.metric("platform_model_api_inference_requests_total") == 21
    assert await proxy.metric("tollgate_inflight_requests") == 0
    assert await proxy.stop() == 0
    assert sum(row["sums"][0] for rows in world.control.traffic.values() for row in rows) == 21


async def test_control_is_told_which_incarnations_may_still_give_events(world: World) -> None:
    await world.proxy.start(workers=2)
    machines = world.control.machines
    await eventually(lambda: machines)
    (name,) = machines
    assert name.endswith(f":{world.proxy.folder}/data/journal")
    await eventually(lambda: len(machines[name]) == 2)
    first = {*machines[name]}
    os.kill(world.proxy.workers()[0], signal.SIGKILL)
    await eventually(lambda: len({*machines[name]} - first) == 1)
    await eventually(lambda: len(machines[name]) == 2)


async def test_worker_with_a_blocked_loop_is_not_ready(world: World) -> None:
    await world.proxy.start()
    (worker,) = world.proxy.workers()
    os.kill(worker, signal.SIGSTOP)
    try:
        status, report = await world.proxy.admin("/readyz")
        assert status == 503
        assert "0 of 1 serve" in report
        assert (await world.proxy.admin("/metrics"))[0] == 200
    finally:
        os.kill(worker, signal.SIGCONT)
    await world.proxy.until_ready()


@pytest.mark.soak
async def test_no_worker_outlives_the_supervisor(world: World) -> None:
    proxy = world.proxy
    await proxy.start(workers=2)
    workers = proxy.workers()
    assert len(workers) == 2
    await proxy.stop(signal.SIGKILL)

    async def worker_ended() -> bool:
        return not any(is_running(pid) for pid in workers)

    await eventually(worker_ended)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", proxy.port))
    await proxy.start(workers=2)
    assert (await proxy.call())[0] == 200


async def test_sigterm_finishes_calls_in_flight_and_ships_their_events(world: World) -> None:
    proxy = world.proxy
    await proxy.start(workers=2)
    world.upstream.gate.close()
    calls = [asyncio.create_task(proxy.call()) for _ in range(4)]

    async def dispatched() -> bool:
        return len(world.upstream.received) == 4

    await eventually(dispatched)
    stop = asyncio.create_task(proxy.stop())

    await eventually(lambda: refused(proxy.port))
    world.upstream.gate.open()
    assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 4
    assert await stop == 0
    assert len(world.events) == 4
    rows = [row for rows in world.control.traffic.values() for row in rows]
    assert {(row["workspace_id"], row["slug"]) for row in rows} == {("ws", "org/m")}
    assert [sum(row["sums"][place] for row in rows) for place in range(6)] == [4, 0, 0, 4 * 5, 0, 4 * 2]
    assert sum(sum(row["first_bytes"]) for row in rows) == 4


async def test_readyz_of_a_draining_proxy_reports_only_the_drain(world: World) -> None:
    """An ended worker no longer reports that it reaches Redis; readyz must not list that."""
    proxy = world.proxy
    await proxy.start(workers=2)
    world.upstream.gate.close()
    call = asyncio.create_task(proxy.call())

    async def dispatched() -> bool:
        return len(world.upstream.received) == 1

    await eventually(dispatched)
    stop = asyncio.create_task(proxy.stop())

    async def one_has_ended() -> bool:
        return len(proxy.workers()) == 1

    await eventually(one_has_ended)
    status, report = await proxy.admin("/readyz")
    assert status == 503
    checks = json.loads(report)["checks"]
    assert {name: text for name, text in checks.items() if text != "ok"} == {"workers": "draining"}
    world.upstream.gate.open()
    assert (await call)[0] == 200
    assert await stop == 0


async def test_body_still_arriving_at_sigterm_is_read_and_answered(world: World) -> None:
    """Bodies have a content length or chunks, are small or large, and some connections carried a call before."""
    proxy = world.proxy
    await proxy.start(workers=2, TOLLGATE_DRAIN_TIMEOUT_S="15")
    async with AsyncExitStack() as stack:
        uploads = [await stack.enter_async_context(an_upload(proxy.port)) for _ in range(6)]
        for number, upload in enumerate(uploads):
            if number % 3 == 2:
                await upload.begin(1_000, chunked=False)
                await upload.end()
                assert b"connection: close" not in await upload.answer()
            await upload.begin((1_000, 400_000)[number % 2], chunked=number >= 3)
        stop = asyncio.create_task(proxy.stop())
        await eventually(lambda: refused(proxy.port))
        for upload in uploads:
            await upload.end()
        for upload in uploads:
            head = await upload.answer()
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in head
    assert await stop == 0
    assert len(world.events) == 6 + 2


async def test_readyz_is_503_for_a_while_before_the_listener_closes(world: World) -> None:
    """New connections are served meanwhile, as a load balancer may still send them, with `connection: close`."""
    proxy = world.proxy
    await proxy.start(TOLLGATE_DRAIN_TIMEOUT_S="20", TOLLGATE_READY_GRACE_S="3")
    async with an_upload(proxy.port) as reused:
        await reused.begin(1_000, chunked=False)
        await reused.end()
        assert b"connection: close" not in await reused.answer()
        start_s = asyncio.get_running_loop().time()
        stop = asyncio.create_task(proxy.stop())

        async def unready() -> bool:
            status, report = await proxy.admin("/readyz")
            return status == 503 and "draining" in report

        await eventually(unready)
        async with an_upload(proxy.port) as fresh:
            for upload in (fresh, reused):
                await upload.begin(1_000, chunked=False)
                await upload.end()
                head = await upload.answer()
                assert head.startswith(b"HTTP/1.1 200 ")
                assert b"connection: close" in head
    await eventually(lambda: refused(proxy.port))
    assert asyncio.get_running_loop().time() - start_s >= 3
    assert await stop == 0
    assert len(world.events) == 3


async def test_drain_fails_no_request_on_a_reused_connection(world: World) -> None:
    """Callers reuse a connection until its answer says `connection: close`."""
    proxy = world.proxy
    await proxy.start(workers=2, TOLLGATE_DRAIN_TIMEOUT_S="20", TOLLGATE_READY_GRACE_S="2")
    answers: list[bytes] = []

    async def caller() -> None:
        async with an_upload(proxy.port) as upload:
            head = b""
            while b"connection: close" not in head:
                await upload.begin(1_000, chunked=False)
                await upload.end()
                head = await upload.answer()
                answers.append(head)

    callers = [asyncio.create_task(caller()) for _ in range(8)]

    async def warm() -> bool:
        return len(answers) >= 40

    await eventually(warm)
    stop = asyncio.create_task(proxy.stop())
    await asyncio.gather(*callers)
    assert all(head.startswith(b"HTTP/1.1 200 ") for head in answers)
    assert await stop == 0
    assert len(world.events) == len(answers)


async def test_malformed_request_on_the_admin_port_is_never_quoted(world: World) -> None:
    await world.proxy.start()
    key = b"tg_quoteme.0123456789"
    for message in (
        b"GET /metrics HTTP/1.1 Authorization: Bearer %b\r\n\r\n" % key,
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization Bearer %b\r\n\r\n" % key,
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%b\r\n" % key,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.proxy.admin_port)
        writer.write(message)
        async with asyncio.timeout(20):
            raw = await reader.read()
        await closed(writer)
        assert raw.startswith(b"HTTP/1.1 400 ")
        assert set(json.loads(raw.partition(b"\r\n\r\n")[2])) == {"error", "message", "error_code"}
        assert b"quoteme" not in raw
    assert await world.proxy.stop() == 0
    log = world.proxy.log.read_text()
    assert "malformed request from 127.0.0.1" in log
    assert "quoteme" not in log
    assert "Traceback" not in log


async def test_drain_ends_in_time_when_an_upstream_hangs(world: World) -> None:
    proxy = world.proxy
    await proxy.start(TOLLGATE_DRAIN_TIMEOUT_S="0.5", TOLLGATE_READY_GRACE_S="0.2")
    world.upstream.gate.close()
    call = asyncio.create_task(proxy.call())

    async def dispatched() -> bool:
        return len(world.upstream.received) == 1

    await eventually(dispatched)
    assert await asyncio.wait_for(proxy.stop(), PATIENCE_S) == 0
    await asyncio.gather(call, return_exceptions=True)


async def test_second_proxy_on_the_same_port_or_replica_names_the_conflict(world: World) -> None:
    proxy = world.proxy
    await proxy.start()
    for second, reason in (
        (twin(proxy, folder="other", port=proxy.port), f"{proxy.port}: Something else listens"),
        (twin(proxy, folder="other", admin_port=proxy.admin_port), f"{proxy.admin_port}: Something else listens"),
        (twin(proxy, folder=""), "Another proxy on this machine"),
    ):
        await second.start(ready=False)
        assert second.process is not None
        assert await asyncio.wait_for(second.process.wait(), 20) == 1
        assert reason in second.log.read_text()
    assert (await proxy.call())[0] == 200


async def test_invalid_setting_is_reported_in_one_line(world: World) -> None:
    await world.proxy.start(ready=False, TOLLGATE_DRAIN_TIMEOUT_S="soon")
    assert world.proxy.process is not None
    assert await world.proxy.process.wait() == 1
    line = "Error: TOLLGATE_DRAIN_TIMEOUT_S: expected a number of seconds above 0\n"
    assert world.proxy.log.read_text() == line


async def test_damaged_replica_file_is_rebuilt_at_start(world: World) -> None:
    await world.proxy.start()
    assert await world.proxy.stop() == 0
    replica = world.proxy.folder / "data" / "replica.db"
    replica.write_bytes(b"\x00garbage" * 1000)
    await world.proxy.start()
    assert (await world.proxy.call())[0] == 200


async def refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    await closed(writer)
    return False


class Upload:
    """A caller that sends its body in two halves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._rest = b""

    async def begin(self, size: int, *, chunked: bool) -> None:
        body = json.dumps({"model": "org/m", "messages": [{"role": "user", "content": "x" * size}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {make_key(1)}\r\n"
        head += "Transfer-Encoding: chunked\r\n\r\n" if chunked else f"Content-Length: {len(body)}\r\n\r\n"
        first = body[: len(body) // 2]
        last = body[len(body) // 2 :]
        if chunked:
            first, last = (b"%x\r\n%b\r\n" % (len(part), part) for part in (first, last))
            last += b"0\r\n\r\n"
        self.writer.write(head.encode() + first)
        self._rest = last
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(self._rest)
        await self.writer.drain()

    async def answer(self) -> bytes:
        """Read the answer with its body; return the head."""
        async with asyncio.timeout(20):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
            await self.reader.readexactly(int(length.partition(b": ")[2]))
        return head


@asynccontextmanager
async def an_upload(port: int) -> AsyncIterator[Upload]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Upload(reader, writer)
    finally:
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def twin(proxy: Proxy, folder: str, port: int = 0, admin_port: int = 0) -> Proxy:
    """Another proxy, in `folder` below the first one's, on its ports where given."""
    place = proxy.folder / folder
    place.mkdir(exist_ok=True)
    other = Proxy(place, proxy.environ, proxy.client)
    other.port = port or other.port
    other.admin_port = admin_port or other.admin_port
    return other


def accept_queue(port: int) -> int:
    """Connections that wait to be accepted on a listening port of this machine (`ss -l`, from /proc)."""
    length = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "0A":
            length += int(fields[4].partition(":")[2], 16)
    return length
