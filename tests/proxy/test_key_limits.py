"""The rate limits of a key on the path of a call: over all its slugs, beside its group's, returned exactly once."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from policy.credentials import digest_of
from policy.endpoints import MODEL_API, Target
from policy.keys.settings import KeySettings
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.spend.effective import KeySpend, spend_plan
from policy.spend.limits import SpendEnforcement, SpendLimit
from policy.spend.spend_hash import epoch_text, spent_field
from proxy.accounting.reservations import Taken
from proxy.answers import EndCause, RefusingLimit
from tests.fakes.directory import KEY, SLUG, vendor_b
from tests.fakes.path import PathRig, now_ms
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeOutgoing, asking

OTHER_SLUG = "acme/other"
OTHER_KEY = "tg_otherkeyotherk.0123456789abcdefghijklmnopqrst"
ANSWER = b'{"model":"m","usage":{"prompt_tokens":100,"completion_tokens":20}}'


def rpm(threshold: int) -> Limit:
    return Limit(LimitType.REQUEST, Unit.MINUTE, threshold)


@pytest.fixture
def rig() -> PathRig:
    """Two slugs and two keys of one group, which allows ten requests a minute for each slug."""
    new_rig = PathRig()
    new_rig.directory.add_slug(OTHER_SLUG, vendor_b())
    new_rig.directory.add_key(OTHER_KEY)
    entries = tuple(SlugLimits(slug, (rpm(10),)) for slug in (SLUG, OTHER_SLUG))
    new_rig.directory.groups["g1"] = Group("g1", "w1", None, "entity-1", Enforcement.INDEPENDENT, entries)
    return new_rig


def limit_key(rig: PathRig, *limits: Limit, key: str = KEY, bucket: str | None = None) -> None:
    row = rig.directory.keys[digest_of(key)]
    settings = KeySettings(rate_limits=limits)
    rig.directory.keys[digest_of(key)] = row._replace(settings=settings, bucket=bucket)


async def call(rig: PathRig, slug: str = SLUG, key: str = KEY) -> FakeOutgoing:
    incoming = asking(slug)
    incoming.fields[0] = ("authorization", f"Bearer {key}")
    rig.upstream.will(answer(ANSWER))
    return await rig.serve(incoming)


async def test_limit_holds_over_all_slugs_of_the_key_and_for_no_other_key(rig: PathRig) -> None:
    limit_key(rig, rpm(2))
    statuses = [(await call(rig, slug)).status for slug in (SLUG, OTHER_SLUG, SLUG, OTHER_SLUG)]
    assert statuses == [200, 200, 429, 429]
    assert (await call(rig, key=OTHER_KEY)).status == 200
    rig.check_settled()


async def test_refusal_tells_of_the_key_and_the_log_names_it(rig: PathRig) -> None:
    limit_key(rig, rpm(1))
    await call(rig)
    refused = await call(rig, OTHER_SLUG)
    message = "Rate limit exceeded for this key: 1 REQUEST per MINUTE"
    assert json.loads(b"".join(refused.pieces)) == {"error": message, "error_code": "RATE_LIMITED"}
    limit = RefusingLimit("key_tg_abcdefghijkl", "REQUEST", "MINUTE", "1")
    assert rig.meters.calls[-1].end_cause == EndCause("limit", limit)


async def test_keys_of_a_rotation_share_the_limit(rig: PathRig) -> None:
    limit_key(rig, rpm(2))
    limit_key(rig, rpm(2), key=OTHER_KEY, bucket="tg_abcdefghijkl")
    assert [(await call(rig, key=key)).status for key in (KEY, OTHER_KEY, KEY, OTHER_KEY)] == [200, 200, 429, 429]


async def test_refusal_by_the_group_returns_what_the_key_took(rig: PathRig) -> None:
    limit_key(rig, rpm(12))
    for _ in range(10):
        assert (await call(rig)).status == 200
    for _ in range(5):
        assert (await call(rig)).status == 429
    assert [(await call(rig, OTHER_SLUG)).status for _ in range(3)] == [200, 200, 429]


async def test_tokens_of_the_key_are_settled(rig: PathRig) -> None:
    limit_key(rig, Limit(LimitType.TOKEN, Unit.MINUTE, 100_000), Limit(LimitType.OUTPUT_TOKEN, Unit.MINUTE, 90_000))
    first = await call(rig)
    second = await call(rig, OTHER_SLUG)
    assert dict(first.headers)["x-ratelimit-limit-tokens"] == "100000"
    of_both, of_one = (100_000 - int(dict(one.headers)["x-ratelimit-remaining-tokens"]) for one in (second, first))
    assert of_both == 120 + of_one, "the first call's tokens are exact when the second reserves"


async def test_headers_tell_of_the_tightest_limit(rig: PathRig) -> None:
    limit_key(rig, rpm(4))
    headers = dict((await call(rig)).headers)
    assert headers["x-ratelimit-limit-requests"] == "4"
    limit_key(rig, rpm(40))
    assert dict((await call(rig)).headers)["x-ratelimit-limit-requests"] == "10"


async def test_calls_in_flight_free_their_places_of_key_and_group(rig: PathRig) -> None:
    limit_key(rig, Limit(LimitType.CONCURRENT_REQUEST, Unit.MINUTE, 1))
    limits = (SlugLimits(SLUG, (Limit(LimitType.CONCURRENT_REQUEST, Unit.MINUTE, 1),)),)
    rig.directory.groups["g1"] = replace(rig.directory.groups["g1"], models=limits)
    for _ in range(3):
        assert (await call(rig)).status == 200
    assert set(rig.counters.in_flight.values()) == {0}


async def test_threshold_of_0_refuses_every_call_of_the_key(rig: PathRig) -> None:
    limit_key(rig, rpm(0))
    refused = await call(rig)
    assert refused.status == 429
    assert dict(refused.headers)["retry-after"] == "60"
    assert (await call(rig, key=OTHER_KEY)).status == 200


def limit_spend(rig: PathRig, *limits: SpendLimit, key: str = KEY, bucket: str | None = None) -> None:
    """Limit what a key spends, through slugs of 3 and 15 EUR a million tokens, and count it."""
    rig.directory.price("3", "15")
    rig.directory.prices[OTHER_SLUG] = rig.directory.prices[SLUG]
    row = rig.directory.keys[digest_of(key)]
    rig.directory.keys[digest_of(key)] = row._replace(settings=KeySettings(spend_limits=limits), bucket=bucket)
    plan = spend_plan(["g1"], Enforcement.INDEPENDENT, [()], [None], KeySpend("key_tg_abcdefghijkl", limits))
    assert plan is not None
    rig.spend.count(plan)


async def test_spend_limit_holds_over_all_slugs_and_keys_of_a_rotation(rig: PathRig) -> None:
    limit = SpendLimit(Unit.DAY, Decimal("0.0005"), "EUR")
    limit_spend(rig, limit)
    limit_spend(rig, limit, key=OTHER_KEY, bucket="tg_abcdefghijkl")
    answers = [await call(rig, *of) for of in ((SLUG, KEY), (OTHER_SLUG, OTHER_KEY), (OTHER_SLUG, KEY))]
    assert [answer.status for answer in answers] == [200, 429, 429], "a call costs 0.0006"
    message = "Spend limit exceeded for this key: 0.0005 EUR per DAY"
    assert json.loads(b"".join(answers[1].pieces)) == {"error": message, "error_code": "SPEND_LIMIT_EXCEEDED"}
    limit_row = RefusingLimit("key_tg_abcdefghijkl", "SPEND", "DAY", "0.0005")
    assert rig.meters.calls[-1].end_cause == EndCause("spend_limit", limit_row)
    [book] = rig.spend.books.values()
    assert book.reserved == {"key_tg_abcdefghijkl": 6 * 10**8, "g1": 6 * 10**8}
    rig.check_settled()


async def test_spent_limit_of_a_key_is_told_to_no_webhook(rig: PathRig) -> None:
    limit_spend(rig, SpendLimit(Unit.DAY, Decimal("0.0005"), "EUR"))
    [book] = rig.spend.books.values()
    book.spent[spent_field("key_tg_abcdefghijkl", Unit.DAY, now_ms())] = 10**22
    refused = await call(rig)
    assert refused.status == 429
    assert int(dict(refused.headers)["retry-after"]) > 60 or now_ms() % 86_400_000 > 86_340_000
    assert rig.meters.limits_reached == []
    assert (await call(rig, key=OTHER_KEY)).status == 200


async def test_hard_limit_of_a_key_grants_what_is_left(rig: PathRig) -> None:
    limit_spend(rig, SpendLimit(Unit.DAY, Decimal("0.01"), "EUR", SpendEnforcement.HARD))
    [book] = rig.spend.books.values()
    book.build(epoch_text("0" * 40, "EUR", with_draws=True, with_keys=True), 1, {})
    book.complete("0" * 40, {})
    answer = await call(rig)
    assert answer.status == 200
    assert int(dict(answer.headers)["x-tollgate-output-cap"]) < 8192


async def test_tier_and_key_and_group_all_bind(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, Target(MODEL_API, target_model="m"))
    limit_key(rig, rpm(100))
    takes: list[Taken] = []
    give = rig.counters.take

    async def take(*arguments: object) -> object:
        takes.append(await give(*arguments))  # type: ignore[arg-type]  # as they came
        return takes[-1]

    rig.counters.take = take  # type: ignore[assignment, method-assign]
    await call(rig)
    [only] = takes
    assert [one.key for one in only.returnable] == ["tg:{tier|w1}", "tg:{g1|group}", f"tg:{{g1|{SLUG}}}"]
