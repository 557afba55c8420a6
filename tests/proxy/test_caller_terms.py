"""Calls with keys that have settings: which are refused, how, and what is told of them."""

import asyncio
from dataclasses import replace

import pytest

from policy.credentials import digest_of
from policy.keys.settings import KeySettings
from policy.snapshot import WorkspaceRow
from proxy.callers.caller_addresses import trusted_proxies
from tests.fakes.directory import KEY, SLUG
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking
from tests.proxy.test_pipeline import DONE, delta

DIGEST = digest_of(KEY)
PATHS = ("/v1/chat/completions", "/v1/messages/count_tokens", "/v1/models", "/v1/models/acme/chat", "/v1/nothing")


@pytest.fixture
def rig() -> PathRig:
    rig = PathRig()
    rig.upstream.will(*[answer(b"{}") for _ in range(6)])
    return rig


def settle_on(rig: PathRig, settings: KeySettings | None) -> None:
    """Give the key these settings."""
    rig.directory.keys[DIGEST] = rig.directory.keys[DIGEST]._replace(settings=settings)


async def test_key_is_refused_from_its_end_on(rig: PathRig) -> None:
    settle_on(rig, KeySettings(expires_at_ms=rig.clock_ms + 1))
    assert (await rig.serve(asking())).status == 200
    rig.clock_ms += 1
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json) == (403, {"error": "Authentication failed"})
    assert rig.directory.confirmations == 0, "control is not needed"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("settings", [KeySettings(expires_at_ms=1), KeySettings(disabled=True)])
async def test_ended_key_is_refused_on_each_path(rig: PathRig, path: str, settings: KeySettings) -> None:
    settle_on(rig, settings)
    method = "GET" if "models" in path else "POST"
    outgoing = await rig.serve(FakeIncoming(path, method))
    assert (outgoing.status, rig.upstream.calls) == (403, [])


async def test_ended_key_is_told_nothing_of_its_workspace(rig: PathRig) -> None:
    """It is refused as a revoked one, whatever its workspace owes."""
    settle_on(rig, KeySettings(disabled=True))
    rig.directory.workspaces["w1"] = WorkspaceRow("w1", "suspended", "basic", False)
    assert (await rig.serve(asking())).status == 403
    settle_on(rig, None)
    assert (await rig.serve(asking())).status == 403, "not onboarded"


async def test_report_of_a_refused_call_names_the_key(rig: PathRig) -> None:
    settle_on(rig, KeySettings(disabled=True))
    await rig.serve(asking())
    (report,) = rig.meters.calls
    assert report.labels.key_prefix == rig.directory.keys[DIGEST].prefix


async def test_call_that_began_before_the_end_is_served(rig: PathRig) -> None:
    settle_on(rig, KeySettings(expires_at_ms=rig.clock_ms + 1))
    incoming = asking()
    read = incoming.read

    async def slow(at_least: int = 1) -> bytes:
        rig.clock_ms += 1
        return await read(at_least)

    incoming.read = slow  # type: ignore[method-assign]
    assert (await rig.serve(incoming)).status == 200
    assert (await rig.serve(asking())).status == 403


async def test_stream_that_began_before_the_end_runs_on(rig: PathRig) -> None:
    settle_on(rig, KeySettings(expires_at_ms=rig.clock_ms + 1))
    rest = asyncio.Event()
    stream = answer(headers=[("content-type", "text/event-stream")], pieces=[delta("one"), rest, delta("two"), DONE])
    rig.upstream.script.clear()
    rig.upstream.will(stream)
    serving = asyncio.create_task(rig.serve(asking(stream=True)))
    await stream.wait_start.wait()
    rig.clock_ms += 1
    assert (await rig.serve(asking())).status == 403
    rest.set()
    outgoing = await serving
    assert outgoing.status == 200
    assert b"two" in outgoing.body


async def test_key_is_good_for_its_networks_alone(rig: PathRig) -> None:
    settle_on(rig, KeySettings(allowed_ips=("192.0.2.0/24", "2001:db8::/32")))
    for peer, status in (("192.0.2.9", 200), ("::ffff:192.0.2.9", 200), ("2001:db8::1", 200), ("192.0.3.1", 403)):
        assert (await calling_from(rig, peer)).status == status
    for peer in ("::1", ""):
        refused = await calling_from(rig, peer)
        assert (refused.status, refused.json) == (403, {"error": "Authentication failed"})


async def test_address_is_the_one_that_a_trusted_proxy_names(rig: PathRig) -> None:
    rig = rig.rebuilt(trusted_proxies=trusted_proxies("10.0.0.0/8"))
    settle_on(rig, KeySettings(allowed_ips=("192.0.2.0/24",)))
    assert (await calling_from(rig, "10.0.0.1", "192.0.2.9")).status == 200
    assert (await calling_from(rig, "10.0.0.1", "192.0.2.9, 198.51.100.7")).status == 403
    assert (await calling_from(rig, "198.51.100.7", "192.0.2.9")).status == 403
    assert (await calling_from(rig, "10.0.0.1", "192.0.2.9, unknown")).status == 403
    settle_on(rig, None)
    assert (await calling_from(rig, "10.0.0.1", "192.0.2.9, unknown")).status == 200, "other keys have no address"


async def test_slug_outside_the_key_s_is_as_one_outside_the_group_s(rig: PathRig) -> None:
    settle_on(rig, KeySettings(slugs=()))
    paths = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings")
    of_key = [await body_of(rig, path) for path in paths]
    settle_on(rig, None)
    rig.directory.groups["g1"] = replace(rig.directory.groups["g1"], models=())
    assert of_key == [await body_of(rig, path) for path in paths]
    assert {status for status, _ in of_key} == {404}
    assert not rig.upstream.calls
    assert not rig.meters.decisions


async def test_list_of_slugs_has_those_of_the_key(rig: PathRig) -> None:
    for settings, slugs in (
        (None, [SLUG]),
        (KeySettings(slugs=(SLUG, "acme/gone")), [SLUG]),
        (KeySettings(slugs=()), []),
    ):
        settle_on(rig, settings)
        listing = await rig.serve(FakeIncoming("/v1/models", "GET"))
        assert [model["id"] for model in listing.json["data"]] == slugs
        assert (await rig.serve(FakeIncoming(f"/v1/models/{SLUG}", "GET"))).status == (200 if slugs else 404)


async def test_slug_that_the_group_loses_widens_no_key(rig: PathRig) -> None:
    settle_on(rig, KeySettings(slugs=("acme/other",)))
    assert (await rig.serve(asking())).status == 404
    rig.directory.endpoints["acme/other"] = replace(rig.directory.endpoints[SLUG], slug="acme/other")
    assert (await rig.serve(asking("acme/other"))).status == 404, "the group may not call it"


async def calling_from(rig: PathRig, peer: str, forwarded_for: str | None = None) -> FakeOutgoing:
    incoming = asking()
    incoming.peer = peer
    incoming.fields += [] if forwarded_for is None else [("x-forwarded-for", forwarded_for)]
    return await rig.serve(incoming)


async def body_of(rig: PathRig, path: str) -> tuple[int, object]:
    outgoing = await rig.serve(
        FakeIncoming(path).saying({"model": SLUG, "messages": [], "max_tokens": 5, "input": "x"})
    )
    return outgoing.status, outgoing.json
