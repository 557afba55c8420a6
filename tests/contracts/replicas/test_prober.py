"""The prober against scripted replicas on real sockets: slow, refusing, hanging, failing, redirecting, flapping."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from policy.deployments import ACTIVE, INACTIVE, LOADING_MODEL, NOT_SERVING, Deployment, HealthCheck
from policy.hosts import EgressRules
from policy.snapshot import ModelRow
from proxy.edges.policy.supervisor.model_rows import ModelChange
from proxy.edges.replicas.supervisor.probe_lanes import ProbeLane, ProbeLanes
from proxy.edges.replicas.supervisor.prober import HURRIED_GAP_S, MAX_BODY_BYTES, Outcome, Prober
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from tests import upstream as script
from tests.ports import own_port
from tests.upstream import Behaviour, Exchange, ScriptedUpstream
from tests.waiting import eventually

BOTH_LOOPS = True
OK = script.answer(200, b"fine")
FAILS = script.answer(500, b"not today")
OFTEN = HealthCheck(interval_s=0.02, timeout_s=20)
ONCE = HealthCheck(interval_s=3600, timeout_s=20)
LONG_S = 0.3
"""Seconds to wait for what must not happen."""


class World:
    """A prober, the model whose replicas it probes, and what it said of them."""

    def __init__(self, replica: ScriptedUpstream, allow: str = "127.0.0.0/8", lanes: ProbeLanes | None = None) -> None:
        self.replica = replica
        self.client = HttpUpstream(Egress(EgressRules.parse(allow), 5.0))
        self.outcomes: list[tuple[str, str, bool]] = []
        self.prober = Prober(self.client, lambda *outcome: self.outcomes.append(outcome), lanes)
        self.model: ModelRow | None = None

    def list(self, *replicas: str, check: HealthCheck | None = OFTEN, status: str = ACTIVE) -> None:
        self.deploy(Deployment("d", status, replicas or (self.replica.url,), check))

    def deploy(self, *deployments: Deployment) -> None:
        self.change(ModelRow("m", "ws", {one.id: one for one in deployments}))

    def change(self, after: ModelRow | None) -> None:
        before = self.model
        self.model = after
        self.prober.models_changed([ModelChange("m", before, after)])

    @property
    def healthy(self) -> Sequence[str]:
        return [url for url, healthy in self.verdicts.items() if healthy]

    @property
    def unhealthy(self) -> Sequence[str]:
        return [url for url, healthy in self.verdicts.items() if not healthy]

    @property
    def verdicts(self) -> dict[str, bool]:
        return {url: healthy for _, url, healthy in self.outcomes}

    @property
    def last_told(self) -> bool:
        return bool(self.outcomes) and self.outcomes[-1][2]

    @property
    def probes(self) -> int:
        return len(self.replica.received)

    async def probed(self, times: int = 1) -> None:
        """Wait until this many more probes have been counted."""
        expected = self.prober.outcomes.total() + times
        await eventually(lambda: self.prober.outcomes.total() >= expected)

    async def close(self) -> None:
        await self.prober.aclose()
        await self.client.aclose()


@pytest.fixture
async def replica() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=OK) as server:
        yield server


@pytest.fixture
async def world(replica: ScriptedUpstream) -> AsyncIterator[World]:
    world = World(replica)
    yield world
    await world.close()


async def test_new_replica_is_healthy_with_its_first_good_probe(world: World) -> None:
    world.list(f"{world.replica.url}/base", check=ONCE)
    assert world.outcomes == [], "nothing is known of it yet"
    await world.probed()
    assert world.outcomes == [("d", f"{world.replica.url}/base", True)]
    probe = world.replica.received[0]
    assert (probe.method, probe.target, probe.body) == ("GET", "/base/health", b"")
    assert probe.header("host") == f"127.0.0.1:{world.replica.port}"
    assert probe.header("authorization") is None


async def test_replica_that_nobody_calls_is_probed_at_the_interval(world: World) -> None:
    started_s = time.monotonic()
    world.list(check=HealthCheck(interval_s=0.1, timeout_s=20))
    await eventually(lambda: world.probes >= 5)
    assert time.monotonic() - started_s >= 0.35, "the first one comes at once, the second one early, then one by one"
    world.list(check=ONCE)
    await world.probed()
    probes = world.probes
    await asyncio.sleep(LONG_S)
    assert world.probes == probes


@pytest.mark.parametrize(
    ("behaviour", "outcome", "text"),
    [
        (FAILS, Outcome.STATUS, "was answered 500"),
        (script.answer(404), Outcome.STATUS, "was answered 404"),
        (script.answer(302, headers={"location": "/elsewhere"}), Outcome.STATUS, "was answered 302"),
        (script.raw(then="close"), Outcome.BROKEN, "failed"),
        (script.raw(then="reset"), Outcome.BROKEN, "failed"),
        (script.raw(b"SSH-2.0-OpenSSH_9.6\r\n"), Outcome.BROKEN, "failed"),
        (script.raw(script.head(200, {"content-length": "9"}), b"cut", then="close"), Outcome.BROKEN, "failed"),
        (script.silent(), Outcome.TIMEOUT, "was not answered within 1.5 s"),
        (script.silent(script.head(200, {"content-length": "9"})), Outcome.TIMEOUT, "was not answered within 1.5 s"),
    ],
)
async def test_bad_answer_makes_a_new_replica_unhealthy(
    world: World, caplog: pytest.LogCaptureFixture, behaviour: Behaviour, outcome: Outcome, text: str
) -> None:
    caplog.set_level(logging.INFO)
    world.replica.default = behaviour
    timeout_s = 1.5 if outcome is Outcome.TIMEOUT else 20  # the replica must have received the probe by then
    world.list(check=HealthCheck("/health?deep=hidden", 3600, timeout_s, unhealthy_after=1))
    await world.probed()
    assert world.replica.received[0].target == "/health?deep=hidden"
    assert world.outcomes == [("d", world.replica.url, False)]
    assert world.prober.outcomes == {outcome: 1}
    assert world.probes == 1, "a redirect is not followed"
    assert f"Replica 1 of 1 of deployment d gets no calls: GET /health {text}" in caplog.text
    assert str(world.replica.port) not in caplog.text, "no log names an upstream's host"
    assert "hidden" not in caplog.text, "or holds a query"


async def test_any_2xx_is_good(world: World) -> None:
    world.replica.plan(script.answer(204))
    world.list(check=ONCE)
    await world.probed()
    assert world.healthy == [world.replica.url]


async def test_refused_connection_is_bad_until_something_listens(world: World) -> None:
    port = own_port()
    url = f"http://127.0.0.1:{port}"
    world.list(url)
    await eventually(lambda: world.unhealthy == [url])
    assert set(world.prober.outcomes) == {Outcome.UNREACHABLE}
    server = await asyncio.start_server(_answer_204, "127.0.0.1", port)
    await eventually(lambda: world.healthy == [url])
    server.close()
    await eventually(lambda: world.unhealthy == [url])


async def _answer_204(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
    writer.close()


async def test_thresholds_count_probes_in_a_row(world: World) -> None:
    world.replica.plan(OK, FAILS, FAILS, OK, FAILS, FAILS, FAILS, OK, FAILS, OK, OK)
    world.list(check=replace(OFTEN, healthy_after=2, unhealthy_after=3))
    await eventually(lambda: world.last_told)
    assert world.probes == 11
    assert [healthy for _, _, healthy in world.outcomes] == [False, True]


async def test_flapping_replica_changes_at_its_thresholds_only(world: World) -> None:
    world.replica.plan(OK, FAILS, FAILS, OK, FAILS, FAILS, FAILS, OK)
    world.list(check=OFTEN)
    await eventually(lambda: world.probes >= 10)
    assert [healthy for _, _, healthy in world.outcomes] == [True, False, True]


async def test_long_body_is_not_read_to_its_end(world: World) -> None:
    sent_bytes = 0

    async def behave(exchange: Exchange) -> None:
        nonlocal sent_bytes
        await exchange.send(script.head(200))
        while True:
            await exchange.send(b"x" * 8192)
            sent_bytes += 8192

    world.replica.plan(behave)
    world.list(check=ONCE)
    await world.probed()
    assert world.healthy == [world.replica.url]
    await world.replica.until(lambda: world.replica.open_connections == 0)
    assert sent_bytes < MAX_BODY_BYTES + 32 * (1 << 20), "but for what the sockets' buffers took"


async def test_hanging_replicas_delay_no_other_probe(world: World) -> None:
    hanging = [f"{world.replica.url}/hangs/{n}" for n in range(100)]
    world.replica.default = script.gated(OK)
    world.replica.gate.close()
    world.list(*hanging, check=replace(ONCE, timeout_s=60))
    await eventually(lambda: world.replica.gate.arrivals == 100)
    async with ScriptedUpstream(default=OK) as other:
        world.list(*hanging, other.url, check=replace(ONCE, timeout_s=60))
        await eventually(lambda: world.healthy == [other.url])
        assert world.prober.outcomes == {Outcome.GOOD: 1}
        world.list(other.url)


async def test_slow_replicas_leave_the_lane_to_the_others(replica: ScriptedUpstream) -> None:
    lanes = ProbeLanes(ProbeLane(2, 500), ProbeLane(1, 500), ProbeLane(1, 500))
    world = World(replica, lanes=lanes)
    hanging = [f"{replica.url}/hangs/{n}" for n in range(6)]

    async def behave(exchange: Exchange) -> None:
        await (script.silent() if exchange.received.path.startswith("/hangs") else OK)(exchange)

    def fast() -> int:
        return sum(not received.path.startswith("/hangs") for received in replica.received)

    try:
        replica.default = behave
        world.list(*hanging, replica.url, check=HealthCheck(interval_s=0.01, timeout_s=0.6, unhealthy_after=1))
        await eventually(lambda: len(world.unhealthy) == 6)
        fast_before = fast()
        probes_before = world.probes
        await eventually(lambda: fast() - fast_before > 40)
        assert world.probes - probes_before - (fast() - fast_before) < 10
    finally:
        await world.close()


# --- the list of replicas changes -------------------------------------------------------------------------------------


async def test_probe_under_way_ends_when_the_replica_is_taken_off_the_list(world: World) -> None:
    world.replica.default = script.silent()
    world.list(world.replica.url, f"{world.replica.url}/other", check=ONCE)
    await eventually(lambda: world.probes == 2)
    world.list(f"{world.replica.url}/other", check=ONCE)
    await eventually(lambda: world.replica.open_connections == 1)
    world.change(None)
    await eventually(lambda: world.replica.open_connections == 0)
    assert world.healthy == [], "an answer that comes too late says nothing"


@pytest.mark.parametrize("status", sorted(NOT_SERVING))
async def test_deployment_that_does_not_serve_is_not_probed(world: World, status: str) -> None:
    world.list(status=status)
    await asyncio.sleep(LONG_S)
    assert world.probes == 0


async def test_deactivated_replica_starts_as_unknown_when_it_is_activated(world: World) -> None:
    world.list(check=ONCE)
    await world.probed()
    world.list(check=ONCE, status=INACTIVE)
    world.replica.default = script.gated(OK)
    world.replica.gate.close()
    world.list(check=ONCE, status=LOADING_MODEL)
    await eventually(lambda: world.replica.gate.arrivals)
    assert [healthy for _, _, healthy in world.outcomes] == [True, False]
    world.replica.gate.open()
    await eventually(lambda: world.last_told)


async def test_change_of_status_or_of_other_replicas_leaves_probes_alone(world: World) -> None:
    other = f"{world.replica.url}/other"
    world.list(check=ONCE, status=LOADING_MODEL)
    await world.probed()
    world.list(check=ONCE, status=ACTIVE)
    world.list(world.replica.url, other, world.replica.url, check=ONCE)
    await world.probed()
    assert world.healthy == [world.replica.url, other]
    assert world.probes == 2


async def test_deployments_of_one_model_are_probed_each_by_its_own_check(world: World) -> None:
    ours = replace(ONCE, path="/ours")
    world.deploy(
        Deployment("d", ACTIVE, (world.replica.url,), ours),
        Deployment("e", ACTIVE, (world.replica.url,), ONCE),
        Deployment("unchecked", ACTIVE, (world.replica.url,)),
        Deployment("empty", ACTIVE, (), ONCE),
    )
    await world.probed(2)
    assert sorted(received.path for received in world.replica.received) == ["/health", "/ours"]
    assert sorted(id for id, _, _ in world.outcomes) == ["d", "e"]


async def test_changed_check_starts_its_counts_anew_and_says_nothing_until_it_has_decided(world: World) -> None:
    world.replica.plan(OK, FAILS, FAILS)
    world.replica.default = script.silent()
    world.list(check=OFTEN)
    await eventually(lambda: world.probes == 4)
    world.replica.default = FAILS
    world.list(check=replace(OFTEN, path="/stricter"))
    await eventually(lambda: world.unhealthy)
    assert [received.path for received in world.replica.received][:7] == [*["/health"] * 4, *["/stricter"] * 3]
    assert [healthy for _, _, healthy in world.outcomes] == [True, False]


# --- addresses --------------------------------------------------------------------------------------------------------


async def test_address_that_is_not_allowed_is_not_dialled(replica: ScriptedUpstream) -> None:
    world = World(replica, allow="10.0.0.0/8")
    try:
        world.list(check=replace(ONCE, unhealthy_after=1))
        await world.probed()
        assert (world.unhealthy, replica.connections) == ([replica.url], 0)
        assert world.prober.outcomes == {Outcome.UNREACHABLE: 1}
    finally:
        await world.close()


async def test_metadata_address_is_never_dialled(replica: ScriptedUpstream, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World(replica, allow="0.0.0.0/0")
    try:
        world.list("http://169.254.169.254", check=replace(ONCE, unhealthy_after=1))
        await world.probed()
        assert world.prober.outcomes == {Outcome.UNREACHABLE: 1}
        assert "may not be dialled" in caplog.text
    finally:
        await world.close()


# --- while calls are parked -------------------------------------------------------------------------------------------


async def test_replica_is_probed_more_often_while_calls_are_parked(world: World) -> None:
    world.replica.default = FAILS
    world.list(check=ONCE)
    await world.probed()
    world.prober.hurry("d", True)
    world.prober.hurry("d", True)
    started_s = time.monotonic()
    await world.probed(4)
    assert time.monotonic() - started_s >= 2 * HURRIED_GAP_S
    world.replica.default = OK
    await eventually(lambda: world.healthy)
    probes = world.probes
    await asyncio.sleep(LONG_S)
    assert world.probes == probes, "a healthy replica is probed at its interval again"


async def test_probes_are_rare_again_when_no_call_is_parked(world: World) -> None:
    world.replica.default = FAILS
    world.list(check=ONCE)
    await world.probed()
    world.prober.hurry("d", True)
    await world.probed(2)
    world.prober.hurry("d", False)
    probes = world.probes
    await asyncio.sleep(LONG_S)
    assert world.probes <= probes + 1, "one that was due already"


async def test_replica_that_is_listed_while_calls_are_parked_is_probed_often_from_the_start(world: World) -> None:
    world.prober.hurry("d", True)
    world.replica.plan(FAILS, FAILS)
    world.list(check=ONCE, status=LOADING_MODEL)
    await eventually(lambda: world.healthy)
    assert world.probes == 3


async def test_answer_to_a_probe_under_way_counts_when_calls_are_parked(world: World) -> None:
    """A server that accepts connections while it loads answers its first probe as soon as it is ready."""
    world.replica.default = script.gated(OK)
    world.replica.gate.close()
    world.list(check=ONCE)
    await eventually(lambda: world.replica.gate.arrivals)
    world.prober.hurry("d", True)
    world.replica.gate.open()
    await eventually(lambda: world.healthy)
    assert world.probes == 1


# --- pace -------------------------------------------------------------------------------------------------------------


async def test_lane_bounds_how_many_run_and_how_many_start() -> None:
    lane = ProbeLane(at_once=3, per_s=100)
    running = 0
    most = 0

    async def run() -> None:
        nonlocal running, most
        async with lane:
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.05)
            running -= 1

    started_s = time.monotonic()
    await asyncio.gather(*(run() for _ in range(20)))
    assert most == 3
    assert time.monotonic() - started_s >= 0.19, "the last one starts 19 gaps after the first"


async def test_cancelled_wait_frees_its_place() -> None:
    lane = ProbeLane(at_once=1, per_s=10)

    async def run() -> None:
        async with lane:
            pass

    await run()
    waits_for_its_time = asyncio.create_task(run())
    await asyncio.sleep(0)
    waits_for_a_place = asyncio.create_task(run())
    await asyncio.sleep(0)
    waits_for_its_time.cancel()
    waits_for_a_place.cancel()
    async with asyncio.timeout(30):
        await run()
