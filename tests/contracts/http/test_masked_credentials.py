"""The target's credential reaches no caller in a header field or an error, over real sockets."""

import json
from base64 import b64encode
from urllib.parse import quote

import pytest

from policy.endpoints import Target
from policy.hosts import EgressRules
from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.parts import DispatchSettings
from tests.fakes.directory import KEY, SLUG
from tests.fakes.front import listening
from tests.fakes.path import PathRig
from tests.upstream import Behaviour, ScriptedUpstream
from tests.upstream.behaviours import answer

SECRET = "sk-upstream/secret+0123"
SPELLINGS = {
    "as it is": SECRET,
    "in percent escapes": quote(SECRET, safe=""),
    "in JSON escapes": SECRET.replace("/", "\\/"),
    "in base64": b64encode(SECRET.encode()).decode(),
    "in base64 of a user's": b64encode(f"user:{SECRET}".encode()).decode(),
    "in hex": SECRET.encode().hex(),
}
FIELDS = ("request-id", "retry-after", "retry-after-ms", "x-should-retry", "cache-control", "content-language")
HIDDEN_FIELDS = ("www-authenticate", "location", "set-cookie", "x-ratelimit-limit-requests", "server", "x-api-key")
CHAT = {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}}]}
USAGE = {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


async def asked(
    behaviour: Behaviour, *, secret: str = SECRET, stream: bool = False, provider: str = "VENDOR_B"
) -> bytes:
    """The whole answer of a call whose upstream behaves so."""
    rig = PathRig()
    async with ScriptedUpstream(default=behaviour) as upstream:
        client = HttpUpstream(Egress(EgressRules.parse("127.0.0.0/8"), 5.0, None))
        rig.directory.add_slug(SLUG, Target(provider, secret_id="s1", target_model="m"))
        rig.directory.secrets["s1"] = secret
        rig.settings = DispatchSettings({provider: upstream.url})
        rig.over(client)
        async with listening(rig.pipeline.handle, HttpLimits(watch_interval_s=0.05)) as front:
            caller = await front.caller()
            body = {"model": SLUG, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
            content = json.dumps(body).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {KEY}\r\n"
            caller.send(f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
            received = await caller.read_to_end()
        await client.aclose()
    return received


def echoing(spelled: str, status: int, body: bytes, content_type: str) -> Behaviour:
    """An answer that repeats the credential in every field."""
    fields = dict.fromkeys((*FIELDS, *HIDDEN_FIELDS), f"a {spelled} b")
    return answer(status, body, {"content-type": content_type, **fields})


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("status", "stream"), [(200, False), (200, True), (400, False), (429, False), (500, True), (529, False)]
)
@pytest.mark.parametrize("provider", ["VENDOR_B", "VENDOR_A"])
async def test_credential_is_masked_in_every_field_and_error(
    spelling: str, status: int, stream: bool, provider: str
) -> None:
    spelled = SPELLINGS[spelling]
    if status == 200 and stream:
        frames = [json.dumps(part) for part in (CHAT, {"choices": [], **USAGE})]
        content = "".join(f"data: {frame}\n\n" for frame in (*frames, "[DONE]")).encode()
        kind = "text/event-stream"
    else:
        answer_body = CHAT | USAGE if status == 200 else {"error": {"message": f"the key {spelled} is bad"}}
        content = json.dumps(answer_body).encode()
        kind = "application/json"
    received = await asked(echoing(spelled, status, content, kind), stream=stream, provider=provider)
    assert received.startswith(f"HTTP/1.1 {status} ".encode())
    for form in SPELLINGS.values():
        assert form.encode() not in received
    assert b"request-id: a [hidden] b" in received
    assert kind.encode() in received or status != 200


async def test_short_credential_leaves_the_words_of_http() -> None:
    content = json.dumps(CHAT | USAGE).encode()
    received = await asked(echoing("json", 200, content, "application/json"), secret="json")
    assert b"content-type: application/json\r\n" in received
    assert b"request-id: a [hidden] b\r\n" in received
