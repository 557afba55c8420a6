"""The trainer's calls over HTTP, against a twin of control: what is read, and what each failure means."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from policy.training.caches import CacheEntry, CacheSummary
from policy.training.reports import BackendReport, CheckpointReport, OutputBatch, OutputLine
from policy.training.statuses import FULL, Outcome
from tests.fakes.training_control import TOKEN, FakeControl, served
from tests.ports import HOST, own_port
from trainer.backend import EnvironmentRefusedError
from trainer.control import AnotherTrainerError, ControlAwayError, ControlRefusedError
from trainer.edges import control_client
from trainer.edges.control_client import ControlClient

REPORT = BackendReport("t", "fake", None, True, (), ())
LINES = OutputBatch(1, 0, 0, 5, [OutputLine(1, "INFO", "hello")], [])


@pytest.fixture
async def twin() -> AsyncIterator[tuple[FakeControl, ControlClient]]:
    control = FakeControl()
    async with served(control) as url:
        client = ControlClient(url, TOKEN)
        yield control, client
        await client.close()


async def test_a_job_is_seen_claimed_and_told_of(twin: tuple[FakeControl, ControlClient]) -> None:
    control, client = twin
    control.create("j/../x", "echo hello")
    (job,) = (await client.sync(REPORT)).jobs
    claimed = await client.claim(job.job_id, 0)
    assert claimed is not None
    assert (claimed.job_id, claimed.attempt, claimed.spec.start_commands) == ("j/../x", 1, ("echo hello",))
    assert (await client.environment(claimed.environment_token)).variables == {"WHO": "j/../x"}
    assert await client.output(job.job_id, LINES) == 5
    assert control.log_of("j/../x") == ["hello"]
    checkpoint = CheckpointReport("c", "l", 1, FULL, None, None, 3)
    await client.checkpoints(job.job_id, 1, [checkpoint])
    assert control.checkpoints_of["j/../x"] == [checkpoint]


async def test_caches_are_told_of(twin: tuple[FakeControl, ControlClient]) -> None:
    control, client = twin
    summary = CacheSummary("tp/1", 5, (CacheEntry("a/b", 3, 4, "file", "-rw-r--r--"),))
    await client.cache(summary)
    await client.cache_removed("tp/2")
    assert control.caches == {"tp/1": summary}
    assert control.removed_caches == ["tp/2"]


async def test_a_claim_that_is_refused_is_none(twin: tuple[FakeControl, ControlClient]) -> None:
    assert await twin[1].claim("unknown", 0) is None


async def test_output_of_a_job_that_is_gone_is_refused(twin: tuple[FakeControl, ControlClient]) -> None:
    with pytest.raises(ControlRefusedError, match="no such attempt"):
        await twin[1].output("unknown", LINES)
    with pytest.raises(ControlRefusedError):
        await twin[1].checkpoints("unknown", 1, [])


async def test_another_trainer_is_no_outage(twin: tuple[FakeControl, ControlClient]) -> None:
    control, client = twin
    control.other_trainer = True
    with pytest.raises(AnotherTrainerError):
        await client.sync(REPORT)


async def test_an_answer_of_503_is_an_outage_with_its_cause(twin: tuple[FakeControl, ControlClient]) -> None:
    control, client = twin
    control.away = "the database is away"
    for call in (client.sync(REPORT), client.claim("j", 0), client.output("j", LINES), client.checkpoints("j", 1, [])):
        with pytest.raises(ControlAwayError, match="503: the database is away"):
            await call


async def test_a_wrong_internal_token_is_an_outage_that_names_the_setting() -> None:
    async with served(FakeControl()) as url:
        client = ControlClient(url, "another token of the tests")
        with pytest.raises(ControlAwayError, match="TOLLGATE_INTERNAL_TOKEN"):
            await client.sync(REPORT)
        await client.close()


async def test_nobody_there_is_an_outage() -> None:
    port = own_port()
    client = ControlClient(f"http://{HOST}:{port}", TOKEN)
    with pytest.raises(ControlAwayError, match=f"no connection to {HOST} port {port}"):
        await client.sync(REPORT)
    await client.close()


async def test_an_environment_waits_for_control_and_tells_a_missing_secret_from_a_spent_token(
    twin: tuple[FakeControl, ControlClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    control, client = twin
    monkeypatch.setattr(control_client, "AGAIN_S", 0.001)
    control.tokens["token"] = "j"
    control.away = "not now"
    task = asyncio.create_task(client.environment("token"))
    await asyncio.sleep(0.02)
    assert not task.done()
    control.away = None
    await task
    with pytest.raises(EnvironmentRefusedError) as spent:
        await client.environment("token")
    assert spent.value.outcome is Outcome.REQUEUED
    control.tokens["other"] = "j"
    control.secrets_missing = frozenset({"j"})
    with pytest.raises(EnvironmentRefusedError, match="hf is missing") as refusal:
        await client.environment("other")
    assert refusal.value.outcome is Outcome.DEPLOY_FAILED


async def test_nothing_shows_an_environment(twin: tuple[FakeControl, ControlClient]) -> None:
    control, client = twin
    control.tokens["token"] = "the-secret"
    assert "the-secret" not in repr(await client.environment("token"))


# --- answers of something else --------------------------------------------------------------------------------------

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def answered(answer: Answer, call: Callable[[ControlClient], Awaitable[Any]]) -> Any:
    """Return what a call gets from a server that gives this answer on every path."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = own_port()
    await web.TCPSite(runner, HOST, port).start()
    client = ControlClient(f"http://{HOST}:{port}", TOKEN)
    try:
        return await call(client)
    finally:
        await client.close()
        await runner.cleanup()


@pytest.mark.parametrize("body", ["", "<html>", "[]", "null", "3", '{"jobs": 3, "terminals": []}', '{"jobs": [{}]}'])
async def test_rubbish_is_an_outage(body: str) -> None:
    async def rubbish(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    for call in (
        lambda client: client.sync(REPORT),
        lambda client: client.claim("j", 0),
        lambda client: client.output("j", LINES),
    ):
        with pytest.raises(ControlAwayError):
            await answered(rubbish, call)


async def test_a_redirect_does_not_take_the_token_along() -> None:
    paths: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.json_response({}, status=307, headers={"Location": "/elsewhere"})

    with pytest.raises(ControlAwayError, match="307"):
        await answered(redirect, lambda client: client.sync(REPORT))
    assert paths == ["/internal/v1/training/sync"]


async def test_the_client_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(FakeControl()) as url:
        client = ControlClient(url, TOKEN)
        await client.sync(REPORT)
        await client.close()
    assert TOKEN not in caplog.text
