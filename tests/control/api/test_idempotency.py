"""`Idempotency-Key`: a request that creates is carried out once, and each repeat gets its answer.

See docs/reference/management-api.md#idempotency.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select, update

from control.api.protocol.dependencies import DEPENDENCIES
from control.app import OPERATIONS
from control.edges.sql import workspace_rows
from control.edges.sql.idempotency.tables import idempotent_answers
from control.edges.sql.store import now_ms
from control.resources.changes import idempotency
from control.resources.sealing.resealing import look, reencrypt_all
from control.resources.workspaces import create_workspace_key
from control.retention import RetentionDays, delete_old_records
from policy.sealing import unseal
from tests.control.api import test_audit_trail as audit
from tests.control.plane import SECRET_KEYS, SLUG, Answer, ControlPlane, Json, running_plane
from tests.postgres_copies import PostgresCopies
from tests.waiting import eventually

G = "/v1/gateway"
KEYS = "/v1/api_keys"
PROJECTS = "/v1/training_projects"
NEW_KEY = {"type": "WORKSPACE_INVOKE", "name": "laptop"}
_M = "/v1/models/{model_id}"
_D = f"{_M}/deployments"
_E = f"{_M}/environments/{{environment_name}}"
_JOBS = f"{PROJECTS}/{{training_project_id}}/jobs"
_JOB = f"{_JOBS}/{{training_job_id}}"
_GROUP = f"{G}/groups/{{group_id}}"

CREATE = {
    f"{G}/endpoints",
    f"{G}/groups",
    f"{_GROUP}/api_keys",
    f"{_GROUP}/api_keys/register",
    f"{_GROUP}/api_keys/{{prefix}}/rotate",  # another key
    f"{_GROUP}/usage_links",
    f"{_GROUP}/balance/credits",
    f"{G}/webhooks",
    f"{G}/webhooks/{{webhook_id}}/test",  # a message
    KEYS,
    "/v1/secrets",
    "/v1/teams/{team_id}/secrets",
    "/v1/async/webhook_secret",  # another secret
    "/v1/models",
    _D,
    f"{_M}/environments",
    PROJECTS,
    "/v1/teams/{team_id}/training_projects",
    _JOBS,
    f"{_JOB}/recreate",
    f"{_JOB}/interactive_session",
}
CREATE_NOTHING = {
    "/v1/secrets/compare",
    "/graphql",
    "/v1/training_jobs/search",
    f"{_D}/{{deployment_id}}/logs",
    f"{_D}/{{deployment_id}}/logs/append",  # lines of a log, which are written beside all transactions
    f"{_JOB}/logs",
    f"{_JOB}/metrics",
    f"{_JOB}/ssh/sign",
    # A repeat of these asks for the state that they have brought about.
    f"{_JOB}/stop",
    f"{G}/webhooks/{{webhook_id}}/deliveries/{{delivery_id}}/redeliver",
    f"{_D}/{{deployment_id}}/promote",
    f"{_D}/development/promote",
    f"{_E}/promote",
    *(f"{_E}/{verb}_promotion" for verb in ("pause", "resume", "cancel", "force_cancel", "force_roll_forward")),
    *(
        f"{where}/{verb}"
        for where in (f"{_D}/{{deployment_id}}", f"{_D}/development", f"{_D}/production", _E)
        for verb in ("activate", "deactivate", "retry")
    ),
}


async def post(plane: ControlPlane, path: str, body: Any = None, key: str = "k-1", **more: Any) -> Answer:
    """POST with an idempotency key. `as_key`: another API key."""
    presented = {"key": more.pop("as_key")} if "as_key" in more else {}
    return await patient(lambda: plane.post(path, body, headers={"Idempotency-Key": key}, **presented, **more))


async def patient(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Call again when the API key's rate limit says so."""
    while (answer := await call()).status == 429:
        await asyncio.sleep(answer.body["retry_after"])
    return answer


@pytest.fixture
async def postgres_url(postgres_copies: PostgresCopies) -> AsyncIterator[str]:
    async with postgres_copies.one() as url:
        yield url


def is_replay(answer: Answer) -> bool:
    mark: str | None = answer.headers.get("Idempotency-Replayed")
    return mark == "true"


async def names(plane: ControlPlane) -> list[str]:
    listed = await patient(lambda: plane.get(f"{KEYS}?limit=1000"))
    return [item["name"] for item in listed.ok()["items"]]


@asynccontextmanager
async def creation_held_back(plane: ControlPlane) -> AsyncIterator[None]:
    """Lock the workspace's row, which every creation of a training project locks."""
    async with plane.store.write() as tx:
        await workspace_rows.lock_workspace(tx, plane.workspace_id)
        yield


def test_every_post_says_whether_it_creates() -> None:
    """An operation is missing here: does a repeat of it create another thing? Then it needs `creates=True`."""
    posts = {operation.path for operation in OPERATIONS if operation.method == "POST"}
    assert posts == CREATE | CREATE_NOTHING
    assert not CREATE & CREATE_NOTHING
    creating = {(operation.method, operation.path) for operation in OPERATIONS if operation.creates}
    assert creating == {("POST", path) for path in CREATE}


async def test_repeat_gets_the_first_answer_with_its_plaintext(plane: ControlPlane) -> None:
    first = await post(plane, KEYS, NEW_KEY)
    again = await post(plane, KEYS, NEW_KEY)
    assert first.ok() == again.ok()
    assert first.body["api_key"].startswith("tg_")
    assert (is_replay(first), is_replay(again)) == (False, True)
    assert again.headers["Cache-Control"] == "no-store"
    assert (await names(plane)).count("laptop") == 1


@dataclass
class RepeatedWalk(audit.Walk):
    """Sends each request that creates twice."""

    repeated: set[str] = field(default_factory=set)

    async def __call__(self, method: str, template: str, body: Any = None, **path: str) -> Json:
        if method != "POST" or template not in CREATE:
            return await super().__call__(method, template, body, **path)
        number = len(self.calls)
        self.calls[f"walk-{number}"] = (method, template)
        url = template.format(**path)
        headers = {"Idempotency-Key": f"walk {number}"}
        first = await self.plane.post(url, body, headers={**headers, "x-request-id": f"walk-{number}"})
        again = await self.plane.post(url, body, headers={**headers, "x-request-id": f"again-{number}"})
        assert (first.ok(), is_replay(first), is_replay(again)) == (again.ok(), False, True), template
        self.repeated.add(template)
        result: Json = first.body
        return result


async def test_every_creation_is_carried_out_once(plane: ControlPlane) -> None:
    walk = RepeatedWalk(plane)
    for part in (
        audit.walk_gateway,
        audit.walk_webhooks,
        audit.walk_models,
        audit.walk_promotions,
        audit.walk_training,
    ):
        await part(walk)
    assert walk.repeated == CREATE
    entries = [event["request_id"] for event in await audit.trail(plane)]
    assert all(entries.count(id) == 1 for id in walk.calls), walk.calls
    assert not [id for id in entries if id is not None and id.startswith("again-")]


async def test_two_hundred_at_once_make_one(plane: ControlPlane) -> None:
    answers = await asyncio.gather(*(post(plane, KEYS, NEW_KEY) for _ in range(200)))
    assert len({answer.ok()["api_key"] for answer in answers}) == 1
    assert [is_replay(answer) for answer in answers].count(False) == 1
    assert (await names(plane)).count("laptop") == 1


async def test_two_hundred_at_three_processes_make_one(postgres_url: str) -> None:
    """Three planes on one database, each with connections and turns of its own."""
    async with (
        running_plane(postgres_url) as one,
        running_plane(postgres_url, "two") as two,
        running_plane(postgres_url, "three") as three,
    ):
        planes = (one, two, three)
        calls = (post(planes[n % 3], KEYS, NEW_KEY, as_key=one.key) for n in range(200))
        answers = await asyncio.gather(*calls)
        assert len({answer.ok()["api_key"] for answer in answers}) == 1
        assert [is_replay(answer) for answer in answers].count(False) == 1
        assert (await names(one)).count("laptop") == 1


async def test_waiting_repeats_hold_up_nobody(plane: ControlPlane) -> None:
    """Fifty repeats wait for the first; meanwhile the workspace's other requests are answered."""
    body = {"training_project": {"name": "llama"}}
    async with creation_held_back(plane):
        calls = [asyncio.create_task(post(plane, PROJECTS, body)) for _ in range(50)]
        for _ in range(5):
            (await plane.get(KEYS)).ok()
    answers = await asyncio.gather(*calls)
    assert len({json.dumps(answer.ok()) for answer in answers}) == 1
    assert [is_replay(answer) for answer in answers].count(False) == 1


async def test_who_waits_too_long_is_told_to_come_again(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"training_project": {"name": "llama"}}
    async with creation_held_back(plane):
        first = asyncio.create_task(post(plane, PROJECTS, body))
        await eventually(lambda: not plane.client.app[DEPENDENCIES].key_turns.is_idle)
        monkeypatch.setattr(idempotency, "WAIT_S", 0.2)
        second = await post(plane, PROJECTS, body)
        assert second.refused(409, "IDEMPOTENCY_IN_PROGRESS")["retry_after"] == 1
        assert second.headers["Retry-After"] == "1"
    assert (await first).ok() == (await post(plane, PROJECTS, body)).ok()


async def test_who_waits_too_long_for_another_process_is_told_so(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"training_project": {"name": "llama"}}
    async with running_plane(postgres_url) as one, running_plane(postgres_url, "two") as two:
        async with creation_held_back(one):
            first = asyncio.create_task(post(one, PROJECTS, body))
            await eventually(lambda: is_claimed(two))
            monkeypatch.setattr(idempotency, "WAIT_S", 0.2)
            second = await post(two, PROJECTS, body, as_key=one.key)
            assert second.refused(409, "IDEMPOTENCY_IN_PROGRESS")["retry_after"] == 1
        assert (await first).ok() == (await post(two, PROJECTS, body, as_key=one.key)).ok()


async def test_another_body_or_query_is_a_conflict(plane: ControlPlane) -> None:
    (await post(plane, KEYS, NEW_KEY)).ok()
    for body in ({**NEW_KEY, "name": "other"}, {"type": "WORKSPACE_INVOKE"}):
        answer = await post(plane, KEYS, body)
        assert "retry_after" not in answer.refused(409, "IDEMPOTENCY_CONFLICT")
        assert "another key" in answer.body["error"]
    group = {"metadata": {"external_entity_id": "c1"}, "models": [{"slug": SLUG}]}
    (await post(plane, f"{G}/groups", group)).ok()
    (await post(plane, f"{G}/groups?dry_run=true", group)).refused(409, "IDEMPOTENCY_CONFLICT")
    assert is_replay(await post(plane, f"{G}/groups", group))


async def test_the_same_values_in_another_spelling_are_the_same_body(plane: ControlPlane) -> None:
    first = await post(plane, KEYS, NEW_KEY)
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k-1"}
    text = '{ "name":"l\\u0061ptop",\n  "type": "WORKSPACE_INVOKE" }'
    answer = await plane.call("POST", KEYS, data=text, headers=headers)
    assert (answer.ok(), is_replay(answer)) == (first.ok(), True)


async def test_a_query_that_nothing_reads_is_no_difference(sqlite_plane: ControlPlane) -> None:
    first = (await post(sqlite_plane, f"{KEYS}?_=1", NEW_KEY)).ok()
    for query in ("", "?_=2", "?%ff=%ed%a0%80"):
        assert (await post(sqlite_plane, KEYS + query, NEW_KEY)).ok() == first


async def test_a_key_counts_per_credential_and_path(plane: ControlPlane) -> None:
    (await post(plane, KEYS, NEW_KEY)).ok()
    second = await create_workspace_key(plane.store, "workspace acme")
    assert not is_replay(await post(plane, KEYS, NEW_KEY, as_key=second["api_key"]))
    other = await plane.another_workspace()
    assert not is_replay(await post(plane, KEYS, NEW_KEY, as_key=other["api_key"]))
    (await post(plane, "/v1/models", {"name": "mine"})).ok()
    secret = {"name": "vendor", "value": "sk-upstream"}
    (await post(plane, "/v1/secrets", secret)).ok()
    assert not is_replay(await post(plane, f"/v1/teams/{plane.workspace_id}/secrets", secret))
    assert not is_replay(await post(plane, KEYS, NEW_KEY, key="k-2"))
    assert (await names(plane)).count("laptop") == 3


async def test_only_successes_are_kept(plane: ControlPlane) -> None:
    (await post(plane, KEYS, {"type": "NO_SUCH"})).refused(400)
    secret_id = await plane.secret()
    endpoint = {"slug": "foreign/slug", "targets": audit.target(secret_id)}
    (await post(plane, f"{G}/endpoints", endpoint)).refused(400)
    (await plane.post(f"{G}/endpoints", {**endpoint, "slug": SLUG})).ok()
    (await post(plane, f"{G}/endpoints", {**endpoint, "slug": SLUG})).refused(409, "CONFLICT")
    assert not is_replay(await post(plane, f"{G}/endpoints", {**endpoint, "slug": f"{SLUG}-2"}))
    assert not is_replay(await post(plane, KEYS, NEW_KEY))
    async with plane.store.read() as conn:
        assert len((await conn.execute(select(idempotent_answers))).all()) == 2


async def test_a_trial_is_not_kept(plane: ControlPlane) -> None:
    group = {"metadata": {"external_entity_id": "c1"}, "models": [{"slug": SLUG}]}
    for _ in range(2):
        trial = await post(plane, f"{G}/groups?dry_run=true", group)
        assert (trial.status, is_replay(trial)) == (200, False)
    created = await post(plane, f"{G}/groups", group)
    assert (created.status, is_replay(created)) == (200, False)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ('""', "empty"),
        ("k" * 256, "longer than 255"),
        ("schlüssel", "printable ASCII"),
        ("a\tb", "printable ASCII"),
    ],
)
async def test_what_cannot_be_a_key_is_named(sqlite_plane: ControlPlane, value: str, fault: str) -> None:
    answer = await post(sqlite_plane, KEYS, NEW_KEY, key=value)
    assert fault in answer.refused(400, "INVALID_REQUEST", "Idempotency-Key")["error"]
    assert "laptop" not in await names(sqlite_plane)


async def test_two_keys_are_refused(sqlite_plane: ControlPlane) -> None:
    headers = [("Authorization", f"Bearer {sqlite_plane.key}"), *[("Idempotency-Key", "k")] * 2]
    async with sqlite_plane.client.post(KEYS, json=NEW_KEY, headers=headers) as answer:
        assert answer.status == 400
        assert (await answer.json())["details"][0]["field"] == "Idempotency-Key"


@pytest.mark.parametrize("value", ["k" * 255, '"8e03978e-40d5-43dd-bc93-6894a57f9324"', "a key, of words"])
async def test_any_printable_text_is_a_key(sqlite_plane: ControlPlane, value: str) -> None:
    (await post(sqlite_plane, KEYS, NEW_KEY, key=value)).ok()
    assert is_replay(await post(sqlite_plane, KEYS, NEW_KEY, key=value))


async def test_requests_that_create_nothing_ignore_the_header(sqlite_plane: ControlPlane) -> None:
    headers = {"Idempotency-Key": "k" * 300}
    prefix = (await sqlite_plane.post(KEYS, NEW_KEY)).ok()["prefix"]
    model = (await sqlite_plane.post("/v1/models", {"name": "mine"})).ok()["id"]
    for method, path, body in (
        ("GET", KEYS, None),
        ("PATCH", f"/v1/models/{model}", {"name": "ours"}),
        ("POST", "/v1/secrets/compare", {"name": "x", "value": "y"}),
        ("DELETE", f"{KEYS}/{prefix}", None),
    ):
        answer = await sqlite_plane.call(method, path, body, headers=headers)
        assert (answer.status, is_replay(answer)) == (200, False), answer.body


async def test_who_may_not_is_refused_before_a_repeat(sqlite_plane: ControlPlane) -> None:
    second = await create_workspace_key(sqlite_plane.store, "workspace acme")
    (await post(sqlite_plane, KEYS, NEW_KEY, as_key=second["api_key"])).ok()
    (await sqlite_plane.delete(f"{KEYS}/{second['prefix']}")).ok()
    (await post(sqlite_plane, KEYS, NEW_KEY, as_key=second["api_key"])).refused(403, "AUTHENTICATION_FAILED")
    federated = (await sqlite_plane.post(f"{G}/groups/{(await sqlite_plane.group('c1'))['id']}/api_keys", {})).ok()
    (await post(sqlite_plane, KEYS, NEW_KEY, as_key=federated["api_key"])).refused(403, "FEDERATED_KEY")


async def test_a_repeat_answers_although_the_thing_was_deleted(plane: ControlPlane) -> None:
    first = (await post(plane, KEYS, NEW_KEY)).ok()
    (await plane.delete(f"{KEYS}/{first['prefix']}")).ok()
    assert (await post(plane, KEYS, NEW_KEY)).ok() == first
    assert "laptop" not in await names(plane)


async def test_after_a_day_a_key_is_free(plane: ControlPlane) -> None:
    first = (await post(plane, KEYS, NEW_KEY)).ok()
    async with plane.store.read() as conn:
        (expiry_ms,) = (await conn.execute(select(idempotent_answers.c.expires_at_ms))).scalars()
    assert abs(expiry_ms - now_ms() - 86_400_000) < 600_000
    async with plane.store.write() as tx:
        await tx.conn.execute(update(idempotent_answers).values(expires_at_ms=now_ms()))
    second = await post(plane, KEYS, {**NEW_KEY, "name": "second"})
    assert (second.ok()["api_key"] != first["api_key"], is_replay(second)) == (True, False)
    assert is_replay(await post(plane, KEYS, {**NEW_KEY, "name": "second"}))


async def test_expired_answers_are_deleted(plane: ControlPlane) -> None:
    (await post(plane, KEYS, NEW_KEY, key="old")).ok()
    async with plane.store.write() as tx:
        await tx.conn.execute(update(idempotent_answers).values(expires_at_ms=now_ms() - 1))
    (await post(plane, KEYS, NEW_KEY, key="new")).ok()
    await delete_old_records(plane.store, RetentionDays(events=92, sums=400, audit=400))
    async with plane.store.read() as conn:
        assert len((await conn.execute(select(idempotent_answers))).all()) == 1
    assert is_replay(await post(plane, KEYS, NEW_KEY, key="new"))


async def is_claimed(plane: ControlPlane) -> bool:
    """Return whether a transaction waits for a lock on the workspace's row, behind its claim."""
    async with plane.store.read() as conn:
        count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return bool((await conn.exec_driver_sql(count)).scalar())


# --- what the database holds --------------------------------------------------------------------------------------


async def stored_rows(plane: ControlPlane) -> list[Any]:
    async with plane.store.read() as conn:
        return list((await conn.execute(select(idempotent_answers))).all())


async def test_the_database_has_neither_the_plaintext_nor_the_header(plane: ControlPlane) -> None:
    first = (await post(plane, KEYS, NEW_KEY, key="order-4711")).ok()
    (row,) = await stored_rows(plane)
    inner = unseal(SECRET_KEYS, row.id, row.answer)  # whoever has TOLLGATE_SECRET_KEY, too
    assert row.id != hashlib.sha256(b"order-4711").hexdigest()
    for text in (repr(row), inner):
        assert first["api_key"] not in text
        assert first["prefix"] not in text
        assert "order-4711" not in text
    with pytest.raises(ValueError, match="No key"):
        unseal(SECRET_KEYS, row.id, inner)


async def test_an_answer_opens_in_its_own_row_only(sqlite_plane: ControlPlane) -> None:
    """Whoever can write to the database cannot have one credential get another's answer."""
    (await post(sqlite_plane, KEYS, NEW_KEY)).ok()
    second = await create_workspace_key(sqlite_plane.store, "workspace acme")
    (await post(sqlite_plane, KEYS, NEW_KEY, as_key=second["api_key"])).ok()
    one, two = await stored_rows(sqlite_plane)
    async with sqlite_plane.store.write() as tx:
        for row, other in ((one, two), (two, one)):
            moved = update(idempotent_answers).where(idempotent_answers.c.id == row.id).values(answer=other.answer)
            await tx.conn.execute(moved)
    (await post(sqlite_plane, KEYS, NEW_KEY)).refused(503, "SECRET_UNREADABLE")


NEW_SECRET_KEY = b"n" * 32


async def test_a_repeat_after_the_secret_key_was_rotated(database_url: str) -> None:
    async with running_plane(database_url) as plane:
        first = (await post(plane, KEYS, NEW_KEY)).ok()
        key = plane.key
        await reencrypt_all(plane.store, (NEW_SECRET_KEY, *SECRET_KEYS))
        assert (await look(plane.store, (NEW_SECRET_KEY,))).unopened == 0
    async with running_plane(database_url, "later", secret_keys=(NEW_SECRET_KEY,)) as plane:
        again = await post(plane, KEYS, NEW_KEY, as_key=key)
        assert (again.ok(), is_replay(again)) == (first, True)


async def test_an_answer_that_no_key_opens_stops_no_rotation(database_url: str) -> None:
    async with running_plane(database_url) as plane:
        (await post(plane, KEYS, NEW_KEY)).ok()
        key = plane.key
    async with running_plane(database_url, "later", secret_keys=(NEW_SECRET_KEY,)) as plane:
        await reencrypt_all(plane.store, (NEW_SECRET_KEY,))
        (await post(plane, KEYS, NEW_KEY, as_key=key)).refused(503, "SECRET_UNREADABLE")
        assert (await names(plane)).count("laptop") == 0  # in the other workspace; nothing was created twice
        assert [item["name"] for item in (await plane.get(KEYS, key=key)).ok()["items"]].count("laptop") == 1


async def test_a_long_answer_is_repeated_byte_for_byte(plane: ControlPlane) -> None:
    limits = [{"type": type, "unit": "MINUTE", "threshold": 5} for type in ("REQUEST", "TOKEN")]
    models = [{"slug": f"acme/m{number}", "rate_limits": limits} for number in range(1000)]
    body = {"metadata": {"external_entity_id": "large"}, "models": models}
    first = await post(plane, f"{G}/groups", body)
    again = await post(plane, f"{G}/groups", body)
    assert (first.ok(), is_replay(again)) == (again.ok(), True)
    (row,) = await stored_rows(plane)
    assert len(row.answer) < len(json.dumps(first.body)) / 4
