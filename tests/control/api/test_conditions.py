"""`ETag`, `If-Match` and `If-None-Match` (docs/reference/management-api.md#lost-updates)."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from commands.edges.management_client import ManagementClient
from commands.errors import RefusedError
from control.app import OPERATIONS
from control.resources.sealing.resealing import reencrypt_all
from tests.control.plane import SECRET_KEYS, SLUG, Answer, ControlPlane, Json, running_plane

ENDPOINTS = "/v1/gateway/endpoints"
GROUPS = "/v1/gateway/groups"
WEBHOOKS = "/v1/gateway/webhooks"
PRICES = "/v1/gateway/prices"
PRICE: Json = {
    "slug": SLUG,
    "valid_from": "2026-01-01",
    "currency": "EUR",
    "input_per_million": "3",
    "output_per_million": "15.5",
}
OTHER = '"0123456789abcdef"'


@dataclass(frozen=True)
class Subject:
    """A resource that was created: its path, its tag, and changes of it."""

    path: str
    tag: str
    changes: tuple[Json, ...]


async def endpoint(plane: ControlPlane) -> Subject:
    target = {"provider": "VENDOR_B", "secret_id": await plane.secret(), "target_model": "big-1"}
    answer = await plane.post(ENDPOINTS, {"slug": SLUG, "targets": [target]})
    changes = tuple({"targets": [{**target, "target_model": name}]} for name in ("big-2", "big-2", "big-3"))
    return Subject(
        f"{ENDPOINTS}/{answer.ok()['id']}", answer.headers["ETag"], (*changes, {"managed_by": "f", **changes[0]})
    )


async def group(plane: ControlPlane, parent: str | None = None) -> Subject:
    answer = await plane.try_group("one" if parent is None else "below", parent)
    changes: tuple[Json, ...] = (
        {"metadata": {"name": "first"}},
        {"metadata": {"name": "first"}},
        {"models": []},
        {"alert_percents": [50]},
        {"spend_limits": [{"unit": "DAY", "amount": "1", "currency": "EUR"}]},
        {"managed_by": "file"},
        {"managed_by": None},
    )
    return Subject(f"{GROUPS}/{answer.ok()['id']}", answer.headers["ETag"], changes)


async def webhook(plane: ControlPlane) -> Subject:
    answer = await plane.post(WEBHOOKS, {"url": "https://93.184.216.34/hook"})
    changes: tuple[Json, ...] = (
        {"rotate_secret": True},
        {"rotate_secret": True},
        {"enabled": False},
        {"managed_by": "f"},
    )
    return Subject(f"{WEBHOOKS}/{answer.ok()['id']}", answer.headers["ETag"], changes)


SUBJECTS = [endpoint, group, webhook]


def under(tag: str, name: str = "If-Match") -> Json:
    return {"headers": {name: tag}}


def failed(answer: Answer) -> Answer:
    answer.refused(412, "PRECONDITION_FAILED")
    return answer


async def two_hundred_at_once(
    plane: ControlPlane, name: str, method: str, path: str, body: Json, *condition: str
) -> list[Answer]:
    """Send them to two control planes on one database, `name` is the second's, with four keys: each has its limit."""
    keys = [(await plane.post("/v1/api_keys", {"type": "WORKSPACE_MANAGE_ALL"})).ok()["api_key"] for _ in range(4)]
    more = under(*condition)
    async with running_plane(url_of(plane), name) as second:

        async def patiently(one: ControlPlane, key: str) -> Answer:
            answer = await one.call(method, path, body, key=key, **more)
            while answer.status == 503:  # its database has no connection free for so many, on a busy machine
                answer = await one.call(method, path, body, key=key, **more)
            return answer

        calls = [patiently(one, key) for one in (plane, second) for key in keys for _ in range(25)]
        return await asyncio.gather(*calls)


def url_of(plane: ControlPlane) -> str:
    return plane.store.engine.url.render_as_string(hide_password=False)


@pytest.mark.parametrize("make", SUBJECTS)
async def test_the_tag_changes_with_each_change_and_is_that_of_a_get(plane: ControlPlane, make: Any) -> None:
    subject = await make(plane)
    tags = [subject.tag]
    for change in subject.changes:  # many of them within one millisecond
        answer = await plane.patch(subject.path, change, **under(tags[-1]))
        answer.ok()
        tags.append(answer.headers["ETag"])
        assert (await plane.get(subject.path)).headers["ETag"] == tags[-1]
        failed(await plane.patch(subject.path, change, **under(tags[-2])))
        assert (await plane.get(subject.path)).headers["ETag"] == tags[-1], "a refusal changes nothing"
    assert len(set(tags)) == len(tags)
    failed(await plane.delete(subject.path, **under(tags[0])))
    deletion = await plane.delete(subject.path, **under(tags[-1]))
    deletion.ok()
    assert "ETag" not in deletion.headers


@pytest.mark.parametrize("make", SUBJECTS)
async def test_of_two_hundred_changes_of_one_version_one_is_made(plane: ControlPlane, make: Any) -> None:
    subject = await make(plane)
    answers = await two_hundred_at_once(plane, "second", "PATCH", subject.path, subject.changes[-1], subject.tag)
    assert Counter(answer.status for answer in answers) == {200: 1, 412: 199}
    winner = next(answer for answer in answers if answer.status == 200)
    assert (await plane.get(subject.path)).headers["ETag"] == winner.headers["ETag"]


async def test_of_two_hundred_prices_for_one_version_one_is_set(plane: ControlPlane) -> None:
    created = await two_hundred_at_once(plane, "first", "PUT", PRICES, PRICE, "*", "If-None-Match")
    assert Counter(answer.status for answer in created) == {200: 1, 412: 199}
    tag = next(answer.headers["ETag"] for answer in created if answer.status == 200)
    changed = await two_hundred_at_once(plane, "second", "PUT", PRICES, PRICE, tag)
    assert Counter(answer.status for answer in changed) == {200: 1, 412: 199}, "even where each writes the same"


async def test_a_price_is_deleted_only_in_the_version_that_is_named(plane: ControlPlane) -> None:
    params = {"slug": SLUG, "valid_from": "2026-01-01"}
    failed(await plane.put(PRICES, PRICE, **under(OTHER)))
    failed(await plane.put(PRICES, PRICE, **under("*")))
    first = (await plane.put(PRICES, PRICE)).headers["ETag"]
    second = (await plane.put(PRICES, PRICE, **under("*"))).headers["ETag"]
    failed(await plane.delete(PRICES, params=params, **under(first)))
    (await plane.delete(PRICES, params=params, **under(second))).ok()
    (await plane.delete(PRICES, params=params, **under(second))).refused(404)


@pytest.mark.parametrize("make", SUBJECTS)
async def test_what_is_not_changed_keeps_its_tag(plane: ControlPlane, make: Any) -> None:
    """Neither a restart, nor another process, nor secrets that are sealed again under a new key."""
    subject = await make(plane)
    await reencrypt_all(plane.store, SECRET_KEYS)
    assert (await plane.get(subject.path)).headers["ETag"] == subject.tag
    async with running_plane(url_of(plane), "second") as second:
        assert (await second.get(subject.path, key=plane.key)).headers["ETag"] == subject.tag
        failed(await second.patch(subject.path, subject.changes[0], key=plane.key, **under(OTHER)))


async def test_a_group_changes_with_those_above_it_and_with_none_beside_it(plane: ControlPlane) -> None:
    top = await group(plane)
    below = await group(plane, top.path.rpartition("/")[2])
    (await plane.post(f"{below.path}/api_keys", {})).ok()
    (await plane.patch(below.path, {"models": []}, params={"dry_run": "true"})).ok()
    assert (await plane.get(below.path)).headers["ETag"] == below.tag
    limited = {"models": [{"slug": SLUG, "rate_limits": [{"type": "REQUEST", "unit": "MINUTE", "threshold": 5}]}]}
    (await plane.patch(top.path, limited)).ok()
    failed(await plane.patch(below.path, {"models": []}, **under(below.tag)))
    failed(await plane.patch(below.path, {"models": []}, params={"dry_run": "true"}, **under(below.tag)))
    failed(await plane.delete(below.path, **under(below.tag)))
    top_tag = (await plane.get(top.path)).headers["ETag"]
    now = (await plane.get(below.path)).headers["ETag"]
    assert now != below.tag
    (await plane.patch(below.path, {"metadata": {"name": "n"}}, **under(now))).ok()
    assert (await plane.get(top.path)).headers["ETag"] == top_tag


async def test_a_trial_has_no_tag(sqlite_plane: ControlPlane) -> None:
    subject = await group(sqlite_plane)
    trial = await sqlite_plane.patch(subject.path, subject.changes[0], params={"dry_run": "true"}, **under(subject.tag))
    trial.ok()
    assert "ETag" not in trial.headers
    body = {"metadata": {"external_entity_id": "trial"}, "models": [{"slug": SLUG}]}
    trial = await sqlite_plane.post(GROUPS, body, params={"dry_run": "true"})
    trial.ok()
    assert "ETag" not in trial.headers


@pytest.mark.parametrize("form", ["*", "{tag}", "{other},{tag}", "{other} ,\t{tag}, ", ", {tag}", 'W/"x", {tag}'])
async def test_a_condition_holds_by_any_of_its_tags(sqlite_plane: ControlPlane, form: str) -> None:
    subject = await group(sqlite_plane)
    tags = form.format(tag=subject.tag, other=OTHER)
    (await sqlite_plane.patch(subject.path, subject.changes[0], **under(tags))).ok()


@pytest.mark.parametrize("form", ["{other}", "W/{tag}", "W/{tag}, {other}", '""'])
async def test_a_condition_fails_by_other_and_weak_tags(sqlite_plane: ControlPlane, form: str) -> None:
    subject = await group(sqlite_plane)
    tags = form.format(tag=subject.tag, other=OTHER)
    answer = failed(await sqlite_plane.patch(subject.path, subject.changes[0], **under(tags)))
    assert "GET it again" in answer.body["error"]
    assert ("weak" in answer.body["error"]) == ("W/" in form)
    failed(await sqlite_plane.get(subject.path, **under(tags)))


@pytest.mark.parametrize(
    "text", ["", ",", "abc", '"abc', 'abc"', '"a" "b"', '"a";"b"', "*,*", '*, "a"', 'w/"a"', '"a b"', "**", '"a"\t"b"']
)
@pytest.mark.parametrize("name", ["If-Match", "If-None-Match"])
async def test_what_is_no_list_of_tags_is_refused(sqlite_plane: ControlPlane, text: str, name: str) -> None:
    subject = await group(sqlite_plane)
    body = (await sqlite_plane.patch(subject.path, subject.changes[0], **under(text, name))).refused(400)
    assert body["details"][0]["field"] == name
    (await sqlite_plane.get(subject.path, **under(text, name))).refused(400)


async def test_tags_may_come_in_several_lines(sqlite_plane: ControlPlane) -> None:
    subject = await group(sqlite_plane)
    headers = [("If-Match", OTHER), ("If-Match", subject.tag), ("Authorization", f"Bearer {sqlite_plane.key}")]
    change = {"metadata": {"name": "n"}}
    async with sqlite_plane.client.patch(subject.path, json=change, headers=headers) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("form", ["*", "{tag}", "W/{tag}", "{other}, {tag}"])
async def test_what_the_caller_has_is_not_sent_again(sqlite_plane: ControlPlane, form: str) -> None:
    subject = await group(sqlite_plane)
    condition = under(form.format(tag=subject.tag, other=OTHER), "If-None-Match")
    answer = await sqlite_plane.get(subject.path, **condition)
    assert (answer.status, answer.body, answer.headers["ETag"]) == (304, "", subject.tag)
    failed(await sqlite_plane.patch(subject.path, subject.changes[0], **condition))
    (await sqlite_plane.patch(subject.path, subject.changes[0])).ok()
    if form != "*":
        (await sqlite_plane.get(subject.path, **condition)).ok()


async def test_head_answers_the_tag(sqlite_plane: ControlPlane) -> None:
    subject = await group(sqlite_plane)
    assert (await sqlite_plane.call("HEAD", subject.path)).headers["ETag"] == subject.tag
    assert (await sqlite_plane.call("HEAD", subject.path, **under("*", "If-None-Match"))).status == 304


@pytest.mark.parametrize("path", [ENDPOINTS, GROUPS, WEBHOOKS])
async def test_a_missing_resource_is_404_whatever_the_condition(sqlite_plane: ControlPlane, path: str) -> None:
    for tag in ("*", OTHER):
        (await sqlite_plane.delete(f"{path}/none", **under(tag))).refused(404)
        (await sqlite_plane.get(f"{path}/none", **under(tag, "If-None-Match"))).refused(404)


async def test_permission_and_body_come_before_the_condition(sqlite_plane: ControlPlane) -> None:
    subject = await group(sqlite_plane)
    viewer = (await sqlite_plane.post("/v1/api_keys", {"type": "WORKSPACE_MANAGE_ALL", "role": "viewer"})).ok()[
        "api_key"
    ]
    (await sqlite_plane.patch(subject.path, {"models": []}, key=viewer, **under(OTHER))).refused(403)
    (await sqlite_plane.patch(subject.path, {"nonsense": 1}, **under(OTHER))).refused(400, field="nonsense")
    other = (await sqlite_plane.another_workspace())["api_key"]
    (await sqlite_plane.patch(subject.path, {"models": []}, key=other, **under(subject.tag))).refused(404)


async def test_an_unknown_condition_is_ignored(sqlite_plane: ControlPlane) -> None:
    subject = await group(sqlite_plane)
    headers = {"If-Unmodified-Since": "Sat, 29 Oct 1994 19:43:31 GMT", "If-Range": OTHER}
    (await sqlite_plane.patch(subject.path, subject.changes[0], headers=headers)).ok()


@pytest.mark.parametrize("name", ["If-Match", "If-None-Match"])
async def test_every_other_write_refuses_a_condition(sqlite_plane: ControlPlane, name: str) -> None:
    """It would be ignored, and an update lost."""
    refusing = [one for one in OPERATIONS if one.method not in ("GET", "HEAD")]
    refusing = [one for one in refusing if one.method == "POST" or not one.is_tagged]
    assert len(refusing) > 50
    for operation in refusing:
        path = operation.path.replace("{", "").replace("}", "")
        body = (await sqlite_plane.call(operation.method, path, {}, **under("*", name))).refused(400)
        assert body["details"][0]["field"] == name, operation.path


async def test_a_list_ignores_a_condition(sqlite_plane: ControlPlane) -> None:
    answer = await sqlite_plane.get(GROUPS, **under("*", "If-None-Match"))
    assert answer.ok()["items"] == []
    assert "ETag" not in answer.headers


def test_all_operations_of_these_resources_are_tagged() -> None:
    paths = (f"{ENDPOINTS}/{{endpoint_id}}", f"{GROUPS}/{{group_id}}", f"{WEBHOOKS}/{{webhook_id}}")
    tagged = {(one.method, one.path) for one in OPERATIONS if one.is_tagged}
    expected = {(method, path) for path in paths for method in ("GET", "PATCH", "DELETE")}
    expected |= {("POST", path) for path in (ENDPOINTS, GROUPS, WEBHOOKS)}
    assert tagged == expected | {("PUT", PRICES), ("DELETE", PRICES)}


async def test_commands_do_not_overwrite_what_changed_since_they_read_it(sqlite_plane: ControlPlane) -> None:
    path = (await group(sqlite_plane)).path
    client = ManagementClient(str(sqlite_plane.client.make_url("")).rstrip("/"), sqlite_plane.key)
    try:
        await client.call("PATCH", path, {"alert_percents": [10]})
        await client.call("GET", path)
        await client.call("PATCH", path, {"alert_percents": [20]})
        await client.call("PATCH", path, {"alert_percents": [30]})
        await client.call("GET", path)
        (await sqlite_plane.patch(path, {"alert_percents": [40]})).ok()
        with pytest.raises(RefusedError, match="somebody else changed it meanwhile"):
            await client.call("PATCH", path, {"alert_percents": [50]})
        assert (await client.call("GET", path))["alert_percents"] == [40]
    finally:
        await client.close()


async def test_a_creation_that_is_repeated_answers_its_tag_again(sqlite_plane: ControlPlane) -> None:
    body = {"metadata": {"external_entity_id": "once"}, "models": [{"slug": SLUG}]}
    answers = [await sqlite_plane.post(GROUPS, body, **under("k1", "Idempotency-Key")) for _ in range(2)]
    assert answers[0].ok() == answers[1].ok()
    path = f"{GROUPS}/{answers[0].body['id']}"
    tags = {answer.headers["ETag"] for answer in answers}
    assert tags == {(await sqlite_plane.get(path)).headers["ETag"]}
