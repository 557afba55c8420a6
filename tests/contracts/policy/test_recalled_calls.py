"""Values that the directory keeps for repeated heads last no longer than the policy that they were made under."""

from dataclasses import replace
from pathlib import Path

import pytest

from policy.hosts import Reach
from policy.snapshot import Row
from proxy.dialects.dialect_attempt import DialectAttempt
from proxy.dialects.upstream_request import UpstreamRequest
from proxy.directory_values import Forwarding, Identified, Shape
from proxy.edges.policy.directory import MAX_FORWARDED_BYTES
from proxy.errors import PolicyUnavailableError
from proxy.records.head_facts import HeadFacts, Purpose
from proxy.records.request_fields import RequestFields
from tests.contracts.policy.test_replica import World, endpoint, group, key, secret, workspace
from tests.contracts.policy.test_replica import world as world  # the fixture

SLUG = "acme/a"
VALUES = ("/v1/chat/completions", "SDK")


def facts() -> HeadFacts:
    return HeadFacts(None, "/v1/chat/completions", Purpose.INFER, "", None, repeats=True)


def identified(world: World) -> Identified:
    """Look up the only key, as a call does."""
    holder = world.directory.key_holder("d")
    assert holder is not None
    assert holder.identified is not None
    return holder.identified


def shape(world: World, caller: Identified) -> Shape:
    """Look up the only slug, and make the shape that its call leaves."""
    route = world.route("g", SLUG)
    assert route is not None
    credential = world.directory.secret("s")
    attempt = DialectAttempt("chat_completions", "chat_completions")
    request = UpstreamRequest("/v1/chat/completions", {})
    url = "https://vendor.test/v1"
    forwarding = Forwarding(attempt, (), credential, request, url, Reach.OPERATOR, RequestFields(), is_shared=True)
    return Shape(caller, route, b"", forwarding)


@pytest.fixture
def published(world: World) -> World:
    world.publish(key("d"), key("e"), workspace(), group("g"), group("h"), endpoint(SLUG), endpoint("acme/b"))
    world.publish(secret("s", "sk-1"))
    return world


CHANGES = {
    "key": (Row("key", "d", 2, None), False, True),
    "workspace": (workspace("suspended"), False, True),
    "group": (Row("group", "g", 2, None), False, False),
    "limit": (group("g", threshold=6), True, False),
    "endpoint": (endpoint(SLUG, "other"), True, False),
    "secret": (secret("s", "sk-2"), True, False),
    "another key": (Row("key", "e", 2, None), True, True),
    "another group's limit": (group("h", threshold=6), True, True),
    "another slug": (endpoint("acme/b", "other"), True, True),
}
"""A change, and whether caller and shape are still true after it."""


@pytest.mark.parametrize("name", CHANGES)
def test_caller_and_shape_are_kept_until_one_of_their_rows_changes(published: World, name: str) -> None:
    change, same_caller, same_shape = CHANGES[name]
    directory = published.directory
    head = facts()
    caller = identified(published)
    call_shape = shape(published, caller)
    directory.keep_caller(head, caller)
    directory.keep_shape(head, call_shape)
    assert (directory.caller(head), directory.shape(head, SLUG)) == (caller, call_shape)
    assert (directory.caller(facts()), directory.shape(facts(), SLUG)) == (None, None)
    assert directory.shape(head, "acme/other") is None
    published.publish(change)
    assert (directory.caller(head), directory.shape(head, SLUG)) == (None, None)
    assert directory.endpoint(SLUG) is not None  # this look-up follows the change
    assert directory.caller(head) is (caller if same_caller else None)
    assert directory.shape(head, SLUG) is (call_shape if same_shape else None)


@pytest.mark.parametrize("name", CHANGES)
def test_forwarding_is_kept_until_its_endpoint_or_secret_changes(published: World, name: str) -> None:
    """A kept forwarding is for whoever calls the slug."""
    directory = published.directory
    call_shape = shape(published, identified(published))
    assert call_shape.forwarding is not None
    directory.keep_forwarding(VALUES, call_shape.route.endpoint, call_shape.forwarding)
    assert directory.forwarding(VALUES, SLUG) is call_shape.forwarding
    assert directory.forwarding(("/v1/messages",), SLUG) is directory.forwarding(VALUES, "acme/b") is None
    published.publish(CHANGES[name][0])
    assert directory.forwarding(VALUES, SLUG) is None
    assert directory.endpoint(SLUG) is not None  # this look-up follows the change
    assert (directory.forwarding(VALUES, SLUG) is None) == (name in ("endpoint", "secret"))


def test_forwarding_of_long_fields_is_not_kept(published: World) -> None:
    """A caller could fill the memory with them: each of its calls may have others."""
    directory = published.directory
    call_shape = shape(published, identified(published))
    assert call_shape.forwarding is not None
    long = RequestFields({"user-agent": "x" * MAX_FORWARDED_BYTES})
    for values, fields in ((("/" + "a" * MAX_FORWARDED_BYTES,), RequestFields()), (VALUES, long)):
        directory.keep_forwarding(values, call_shape.route.endpoint, replace(call_shape.forwarding, headers=fields))
        assert directory.forwarding(values, SLUG) is None


@pytest.mark.parametrize("change", [endpoint(SLUG, "other"), secret("s", "sk-2")])
def test_forwarding_of_a_former_policy_is_not_kept(published: World, change: Row) -> None:
    directory = published.directory
    former = shape(published, identified(published))
    assert former.forwarding is not None
    published.publish(change)
    for _ in range(2):
        directory.keep_forwarding(VALUES, former.route.endpoint, former.forwarding)
        assert directory.forwarding(VALUES, SLUG) is None
        shape(published, identified(published))  # the new rows are in the cache now


@pytest.mark.parametrize("change", [group("g", threshold=6), endpoint(SLUG, "other"), secret("s", "sk-2")])
def test_what_a_former_policy_said_is_not_kept(published: World, change: Row) -> None:
    """A call was identified and routed; policy changed while it waited."""
    directory = published.directory
    head = facts()
    caller = identified(published)
    former = shape(published, caller)
    published.publish(change, workspace("overdue"))
    directory.keep_caller(head, caller)
    directory.keep_shape(head, former)
    assert (directory.caller(head), directory.shape(head, SLUG)) == (None, None)
    assert identified(published) != caller
    shape(published, caller)  # the new rows are in the cache now
    directory.keep_caller(head, caller)
    directory.keep_shape(head, former)
    assert (directory.caller(head), directory.shape(head, SLUG)) == (None, None)


def test_nothing_is_recalled_once_the_replica_is_gone(published: World, tmp_path: Path) -> None:
    directory = published.directory
    head = facts()
    directory.keep_caller(head, identified(published))
    published.publish(workspace("suspended"))
    for file in tmp_path.glob("replica.db"):
        file.unlink()
    with pytest.raises(PolicyUnavailableError):
        directory.key_holder("d")
    assert directory.caller(head) is None


def test_what_is_kept_counts_against_the_cache_bound(published: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.edges.policy.directory.CACHE_WEIGHT", 60_000)
    directory = published.directory = published.reader()
    for _ in range(1000):
        head = facts()
        caller = identified(published)
        directory.keep_caller(head, caller)
        directory.keep_shape(head, shape(published, caller))
        assert sum(entry.weight for entry in directory._cache.entries.values()) <= 60_000
