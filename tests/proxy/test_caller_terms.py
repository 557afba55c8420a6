"""Calls with keys that have settings: which are refused, how, and what is told of them."""

from dataclasses import replace

import pytest

from policy.credentials import digest_of
from policy.keys.settings import KeySettings
from policy.snapshot import WorkspaceRow
from tests.fakes.directory import KEY
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, asking

DIGEST = digest_of(KEY)
PATHS = ("/v1/chat/completions", "/v1/messages/count_tokens", "/v1/models", "/v1/models/acme/chat", "/v1/nothing")


@pytest.fixture
def rig() -> PathRig:
    rig = PathRig()
    rig.upstream.will(*[answer(b"{}") for _ in range(3)])
    return rig


def settle_on(rig: PathRig, settings: KeySettings | None) -> None:
    """Give the key these settings."""
    rig.directory.keys[DIGEST] = replace(rig.directory.keys[DIGEST], settings=settings)


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
