"""Numbers beyond a double in a request: they go on as they were written, and are refused where they are figures."""

import pytest

from tests.fakes.directory import SLUG
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming
from tests.proxy.test_target_rules import TARGETS, target

PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/v1/embeddings", "/v1/rerank"]
BODY = (
    b'{"model":"%b","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}],"input":"hi",'
    b'"tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":1e400}}}],"x":[-1e999,{"y":%b}]}'
)


@pytest.mark.parametrize("path", PATHS)
async def test_number_beyond_a_double_passes_unchanged(path: str) -> None:
    rig = PathRig()
    rig.directory.add_slug(SLUG, target("VENDOR_A" if path == "/v1/messages" else "VENDOR_B"))
    rig.upstream.will(answer(b"{}"))
    numbers = b"9" * 400
    outgoing = await rig.serve(FakeIncoming(path).saying(BODY % (SLUG.encode(), numbers)))
    assert outgoing.status == 200
    body = bytes(rig.upstream.calls[0].body)
    assert body.removeprefix(b'{"stream_options":{"include_usage":true},').removeprefix(b"{") == (
        BODY % (b"m", numbers)
    ).removeprefix(b"{")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n", "best_of", "stream", "metadata"])
@pytest.mark.parametrize("provider", TARGETS)
async def test_figure_beyond_a_double_is_refused_by_name(name: str, provider: str) -> None:
    rig = PathRig()
    rig.directory.add_slug(SLUG, target(provider))
    body = b'{"model":"%b","messages":[{"role":"user","content":"hi"}],"%b":1e400}' % (SLUG.encode(), name.encode())
    outgoing = await rig.serve(FakeIncoming().saying(body))
    assert (outgoing.status, rig.upstream.calls) == (400, [])
    assert name in outgoing.json["error"]
