"""Values kept for repeated heads (`HeadFacts`, `Shape`) must not outlive the policy that they were made under."""

import asyncio
from collections.abc import Awaitable, Iterator
from decimal import Decimal
from hashlib import sha256

import orjson
import pytest

from policy.credentials import KeyKind
from policy.endpoints import Target
from policy.keys.settings import KeySettings
from policy.snapshot import KeyRow, Row, WorkspaceRow
from policy.spend.balances import Balance
from policy.spend.effective import SpendPlan
from proxy.accounting.journal_records import Kind, frames
from proxy.accounting.spend_taken import SpendHit, SpendTaken, SpendUnavailable
from proxy.dialects.middle.sealing import MARK
from proxy.directory_values import Shape
from proxy.edges.http.connection import Connection
from proxy.edges.policy.directory import SnapshotDirectory
from proxy.edges.redis.spend.redis_spend import RedisSpend
from proxy.records.head_facts import HeadFacts
from tests.fakes.seals import seal
from tests.proxy.budget.canned_wires import CannedCaller
from tests.proxy.budget.canned_worker import (
    CREDENTIAL,
    KEY,
    REQUEST,
    SLUG,
    CannedWorker,
    canned_worker,
    endpoint_row,
    group_row,
    key_row,
    price_row,
    secret_row,
)

UNKNOWN = 403
"""The status for a key that is not ours."""
_HEAD = REQUEST.partition(b"content-length")[0]


class Scene:
    """A worker that has served the same head several times, and its one caller."""

    def __init__(self, runner: asyncio.Runner, worker: CannedWorker) -> None:
        self._runner = runner
        self.worker = worker
        self.peer = "127.0.0.1"

    def call(self, request: bytes = REQUEST) -> int:
        """Send the request. Returns the answer's status."""

        async def answered() -> bytes:
            caller = CannedCaller(self.worker.server.buffer, Connection(self.worker.server), request, 1, b"")
            caller.transport.peer = self.peer
            await caller.end
            return caller.answers[0]

        return int(self._runner.run(answered()).split(b" ", 2)[1])

    @property
    def upstream_head(self) -> bytes:
        return self.worker.egress.latest.partition(b"\r\n\r\n")[0]

    @property
    def payers(self) -> list[str]:
        """The external entities of all calls so far, in order."""
        return [event["external_entity_id"] for event in self._opened]

    @property
    def balances(self) -> list[str]:
        """The groups from whose balances all calls so far draw, in order; "" for those that draw from none."""
        return [event.get("balance_group", "") for event in self._opened]

    @property
    def _opened(self) -> list[dict[str, str]]:
        """The first halves of all calls' events."""
        segment = min(self.worker.journal_directory.glob("*/*.journal"))
        opened = (payload for kind, payload, _ in frames(segment.read_bytes()) if kind is Kind.OPEN)
        return [orjson.loads(payload.partition(b"\n")[0] + b"}") for payload in opened]

    @property
    def upstream_body(self) -> dict[str, object]:
        body: dict[str, object] = orjson.loads(self.worker.egress.latest.partition(b"\r\n\r\n")[2])
        return body


@pytest.fixture
def scene() -> Iterator[Scene]:
    with canned_worker() as (runner, worker):
        scene = Scene(runner, worker)
        assert {scene.call() for _ in range(5)} == {200}
        yield scene


def request(head: bytes = _HEAD, **members: object) -> bytes:
    body = orjson.dumps({"model": SLUG, "messages": []} | members)
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def test_repeated_head_asks_nothing_anew(scene: Scene) -> None:
    first = scene.upstream_head
    assert scene.call() == 200
    varying = (b"x-request-id:", b"content-length:")
    stable_lines = [line for line in first.split(b"\r\n") if not line.startswith(varying)]
    again = [line for line in scene.upstream_head.split(b"\r\n") if not line.startswith(varying)]
    assert sorted(stable_lines) == sorted(again)
    assert b"authorization: Bearer %b" % CREDENTIAL.encode() in again
    assert b"x-request-id: " in scene.upstream_head


def test_body_that_names_state_is_refused_after_bodies_that_do_not(scene: Scene) -> None:
    before = scene.worker.egress.latest
    content = [{"type": "file", "file": {"file_id": "file_1"}}]
    assert scene.call(request(messages=[{"role": "user", "content": content}])) == 400
    assert scene.worker.egress.latest == before


def test_body_with_priced_options_is_refused_after_bodies_without(scene: Scene) -> None:
    scene.worker.publish(
        endpoint_row(Target("VENDOR_B", secret_id="sec_1", target_model="gpt", price_options="REFUSE"))
    )
    assert {scene.call() for _ in range(3)} == {200}
    before = scene.worker.egress.latest
    assert scene.call(request(tools=[{"type": "web_search"}])) == 400
    assert scene.worker.egress.latest == before


def test_each_call_has_a_request_id_of_its_own(scene: Scene) -> None:
    ids = set[bytes]()
    for _ in range(3):
        scene.call()
        ids |= {line for line in scene.upstream_head.split(b"\r\n") if line.startswith(b"x-request-id:")}
    assert len(ids) == 3


def test_rotated_secret_is_sent_from_the_next_call_on(scene: Scene) -> None:
    scene.worker.publish(secret_row("sk-2"))
    assert scene.call() == 200
    assert b"authorization: Bearer sk-2" in scene.upstream_head
    assert CREDENTIAL.encode() not in scene.worker.egress.latest


def test_deleted_secret_is_sent_no_more(scene: Scene) -> None:
    before = scene.worker.egress.latest
    scene.worker.publish(Row("secret", "sec_1", 2, None))
    assert scene.call() == 503
    assert scene.worker.egress.latest == before


def test_slug_that_was_pointed_elsewhere_leads_there(scene: Scene) -> None:
    target = Target("VENDOR_B", secret_id="sec_1", target_model="other", base_url="https://other.test/v1")
    scene.worker.publish(endpoint_row(target))
    assert scene.call() == 200
    assert b"host: other.test\r\n" in scene.upstream_head
    assert scene.upstream_body["model"] == "other"


def test_revoked_key_is_refused(scene: Scene) -> None:
    before = scene.worker.egress.latest
    scene.worker.publish(Row("key", key_row().id, 2, None))
    assert scene.call() == UNKNOWN
    assert scene.worker.egress.latest == before


def test_key_expires_to_the_millisecond_while_its_head_repeats(scene: Scene) -> None:
    worker = scene.worker
    end_ms = worker.now_ms + 3_600_000
    worker.publish(key_row(settings=KeySettings(expires_at_ms=end_ms)))
    assert [scene.call() for _ in range(3)] == [200] * 3
    worker.now_ms = end_ms - 1
    assert scene.call() == 200
    before = worker.egress.latest
    for worker.now_ms in (end_ms, end_ms + 10**9):
        assert [scene.call() for _ in range(2)] == [UNKNOWN] * 2
    assert worker.egress.latest == before
    worker.publish(key_row(settings=KeySettings(expires_at_ms=worker.now_ms + 1)))
    assert scene.call() == 200, "the key's end was put off"


@pytest.mark.parametrize("ended", [KeySettings(disabled=True), KeySettings(expires_at_ms=1)])
def test_key_that_is_ended_while_its_head_repeats_is_refused(scene: Scene, ended: KeySettings) -> None:
    scene.worker.publish(key_row(settings=ended))
    assert [scene.call() for _ in range(2)] == [UNKNOWN] * 2
    scene.worker.publish(key_row())
    assert scene.call() == 200


def test_slug_that_a_key_loses_while_its_head_repeats_is_refused(scene: Scene) -> None:
    before = scene.worker.egress.latest
    scene.worker.publish(key_row(settings=KeySettings(slugs=("acme/other",))))
    assert [scene.call() for _ in range(2)] == [404] * 2
    assert scene.worker.egress.latest == before
    scene.worker.publish(key_row(settings=KeySettings(slugs=(SLUG,))))
    assert [scene.call() for _ in range(2)] == [200] * 2


def test_key_is_good_for_one_of_two_connections_with_the_same_head(scene: Scene) -> None:
    scene.worker.publish(key_row(settings=KeySettings(allowed_ips=("192.0.2.0/24",))))
    for peer, status in (("192.0.2.1", 200), ("198.51.100.1", 403), ("192.0.2.1", 200), ("::ffff:192.0.2.1", 200)):
        scene.peer = peer
        assert [scene.call() for _ in range(2)] == [status] * 2


def test_suspended_workspace_is_refused(scene: Scene) -> None:
    scene.worker.publish(Row("workspace", "ws_1", 2, WorkspaceRow("ws_1", "suspended", "pro", True).to_wire()))
    assert scene.call() == 402


def test_who_pays_follows_a_change_between_the_look_ups_of_key_and_route(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call makes the kept values with the new route, but it was identified under the old policy."""
    look_up = SnapshotDirectory.shape

    def changed(directory: SnapshotDirectory, facts: HeadFacts, slug: str) -> Shape | None:
        monkeypatch.undo()
        scene.worker.publish(group_row(2, "renamed"))
        return look_up(directory, facts, slug)

    monkeypatch.setattr(SnapshotDirectory, "shape", changed)
    assert [scene.call() for _ in range(4)] == [200] * 4
    assert scene.payers[-5:] == ["customer-2", "customer-2", "renamed", "renamed", "renamed"]


def test_call_draws_from_the_balance_of_now(scene: Scene) -> None:
    scene.worker.publish(price_row(input="3", output="15", tiers={}))
    balance = Balance("EUR", Decimal(100))
    changes = ((0, balance), (1, balance), (1, Balance("EUR", Decimal(200))), (1, None), (0, None))
    for level, changed in changes:
        scene.worker.publish(group_row(level, f"customer-{level}", balance=changed))
        assert [scene.call() for _ in range(2)] == [200] * 2
    assert scene.balances[-10:] == ["grp_0"] * 2 + ["grp_1"] * 4 + ["grp_0"] * 2 + [""] * 2


def test_call_draws_from_the_balance_that_it_has_reserved_in(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nearer group gets a balance while the call is between its look-up and its dispatch."""
    scene.worker.publish(price_row(input="3", output="15", tiers={}))
    scene.worker.publish(group_row(0, "customer-0", balance=Balance("EUR", Decimal(100))))
    ask = RedisSpend.ask

    def changed(
        spend: RedisSpend, plan: SpendPlan, event_key: str, picos: int, least: int = 0
    ) -> Awaitable[SpendTaken | SpendHit | SpendUnavailable]:
        monkeypatch.undo()
        scene.worker.publish(group_row(1, "customer-1", balance=Balance("EUR", Decimal(100))))
        return ask(spend, plan, event_key, picos, least)

    monkeypatch.setattr(RedisSpend, "ask", changed)
    assert [scene.call() for _ in range(3)] == [200] * 3
    assert scene.balances[-3:] == ["grp_0", "grp_1", "grp_1"]


def test_another_key_with_the_same_head_is_unknown(scene: Scene) -> None:
    assert scene.call(REQUEST.replace(KEY.encode(), KEY[:-1].encode() + b"x")) == UNKNOWN


def test_streaming_under_a_repeated_head_asks_for_its_usage(scene: Scene) -> None:
    scene.call(request(stream=True))
    assert scene.upstream_body["stream_options"] == {"include_usage": True}
    assert scene.call(request()) == 200
    assert "stream_options" not in scene.upstream_body


def test_body_of_another_slug_does_not_take_this_one_s_way(scene: Scene) -> None:
    before = scene.worker.egress.latest
    assert scene.call(request(model="acme/other")) == 404
    assert scene.worker.egress.latest == before


def test_escaped_and_repeated_members_are_renamed_under_a_repeated_head(scene: Scene) -> None:
    for body in (b'{"mod\\u0065l":"acme/chat","messages":[]}', b'{"model":"x","messages":[],"model":"acme/chat"}'):
        assert scene.call(b"%bcontent-length: %d\r\n\r\n%b" % (_HEAD, len(body), body)) == 200
        assert scene.worker.egress.latest.count(b'"gpt"') >= 1
        assert scene.upstream_body["model"] == "gpt"
        assert b"acme/chat" not in scene.worker.egress.latest


def test_sealed_reasoning_under_a_repeated_head_is_unsealed(scene: Scene) -> None:
    details = [{"type": "reasoning.encrypted", "data": seal("messages", {"type": "thinking", "thinking": "Hm."})}]
    turn = {"role": "assistant", "content": "Hello.", "reasoning_details": details}
    assert scene.call(request(messages=[turn])) == 200
    assert MARK.encode() not in scene.worker.egress.latest
    assert scene.call() == 200


def test_unique_heads_keep_no_shape(scene: Scene) -> None:
    for number in range(100):
        assert scene.call(request(_HEAD + b"traceparent: 00-%032x-%016x-01\r\n" % (number, number + 1))) == 200
        assert b"traceparent: 00-%032x" % number in scene.upstream_head


OTHER_KEY = KEY[:-1] + "x"
_AGENT = b"user-agent: OpenAI/Python 2.8.1\r\n"
FIELDS = {
    "the same": _AGENT,
    "another client": b"user-agent: other/1\r\n",
    "a beta": _AGENT + b"openai-beta: assistants=v2\r\n",
    "two betas": _AGENT + b"anthropic-beta: a\r\nanthropic-beta: b\r\n",
    "a trace": _AGENT + b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
    "a key of one call": _AGENT + b"idempotency-key: 1\r\n",
    "fields of the connection": _AGENT + b"connection: keep-alive, user-agent\r\n",
    "fields of its own": _AGENT + b"cookie: a=b\r\nx-mine: 1\r\n",
}


def sent_upstream(scene: Scene, fields: bytes, query: bytes) -> tuple[list[bytes], str]:
    """Make another caller's first call. Returns the lines that it sends, less those of its own, and who pays."""
    digest = sha256(OTHER_KEY.encode()).hexdigest()
    key = KeyRow(digest, OTHER_KEY[:12], KeyKind.FEDERATED, "ws_1", "grp_1")
    scene.worker.publish(Row("key", digest, 2, key.to_wire()))
    head = _HEAD.replace(KEY.encode(), OTHER_KEY.encode()).replace(b" HTTP/1.1", query + b" HTTP/1.1")
    assert scene.call(request(head.replace(_AGENT, fields))) == 200
    lines = scene.upstream_head.split(b"\r\n")
    own = (b"x-request-id:", b"content-length:")
    return sorted(line for line in lines if not line.startswith(own)), scene.payers[-1]


@pytest.mark.parametrize("query", [b"", b"?beta=true"])
@pytest.mark.parametrize("name", FIELDS)
def test_first_call_of_another_caller_is_sent_as_if_it_were_alone(scene: Scene, name: str, query: bytes) -> None:
    for fields in FIELDS.values():
        assert scene.call(request(_HEAD.replace(_AGENT, fields))) == 200
    with canned_worker() as (runner, worker):
        alone = sent_upstream(Scene(runner, worker), FIELDS[name], query)
    assert sent_upstream(scene, FIELDS[name], query) == alone
    assert alone[1] == "customer-1"
