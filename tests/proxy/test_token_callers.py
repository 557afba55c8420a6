"""Callers with tokens of an identity provider, through the whole path on in-memory parts.

See docs/reference/inference.md#tokens-of-an-identity-provider.
"""

import time
from dataclasses import replace
from typing import Any

import pytest

from policy.credentials import digest_of, token_prefix
from policy.identity.providers import IdentityProviderRow, provider_id
from policy.identity.public_keys import usable_keys
from policy.limits.groups import Enforcement, Group
from policy.snapshot import WorkspaceRow
from tests.fakes.directory import KEY, SLUG
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing
from tests.issuer import AUDIENCE, Issuer, SigningKey, encoded, new_key, signed, signed_by_secret
from tests.proxy.test_pipeline import completion

ISSUER = Issuer(keys=[new_key("first")], port=1)
ENTITY = "entity-1"
"""The external id of the rig's group."""


def provider(*keys: SigningKey, workspace_id: str = "w1", **changes: Any) -> IdentityProviderRow:
    audience = changes.pop("audience", AUDIENCE)
    usable = usable_keys({"keys": [key.public for key in keys or ISSUER.keys]})
    row = IdentityProviderRow(provider_id(ISSUER.url, audience), workspace_id, ISSUER.url, audience, "org", usable)
    return replace(row, **changes)


@pytest.fixture
def rig() -> PathRig:
    rig = PathRig()
    row = provider()
    rig.directory.providers[row.id] = row
    return rig


def token(key: SigningKey | None = None, **claims: Any) -> str:
    return ISSUER.token(key, org=claims.pop("org", ENTITY), **claims)


def presenting(text: str, target: str = "/v1/chat/completions", **headers: str) -> FakeIncoming:
    messages = [{"role": "user", "content": "hi"}]
    incoming = FakeIncoming(target, authorization=f"Bearer {text}", **headers)
    return incoming.saying({"model": SLUG, "messages": messages})


async def call(rig: PathRig, text: str, **headers: str) -> FakeOutgoing:
    rig.upstream.script.clear()
    rig.upstream.will(answer(completion()))
    return await rig.serve(presenting(text, **headers))


def refused(outgoing: FakeOutgoing, status: int = 403) -> None:
    assert outgoing.status == status, outgoing.json
    if status == 403:
        assert outgoing.json == {"error": "Authentication failed"}


async def test_token_calls_as_its_group(rig: PathRig) -> None:
    assert (await call(rig, token())).status == 200
    [opened] = rig.journal.opened
    assert (opened.workspace_id, opened.group_id, opened.external_entity_id) == ("w1", "g1", ENTITY)
    assert opened.api_key_prefix == token_prefix("user-1") == "jwt_" + digest_of("user-1")[:12]
    assert rig.meters.calls[0].labels.external_entity_id == ENTITY


async def test_verified_token_is_remembered_until_it_ends(rig: PathRig) -> None:
    text = token(exp=int(time.time()) + 100)
    for _ in range(3):
        assert (await call(rig, text)).status == 200
    assert list(rig.directory.tokens) == ["token:" + digest_of(text)]
    assert (rig.directory.confirmations, rig.directory.key_questions) == (0, [])
    rig.clock_ms += 155_000  # the leeway of a minute
    assert (await call(rig, text)).status == 200
    rig.clock_ms += 10_000
    refused(await call(rig, text))


FAULTS: dict[str, str] = {
    "unsigned": f"{encoded({'alg': 'none'})}.{encoded(ISSUER.claims(org=ENTITY))}.",
    "hmac with the public key": signed_by_secret(
        str(ISSUER.keys[0].public).encode(), {"alg": "HS256", "kid": "first"}, ISSUER.claims(org=ENTITY)
    ),
    "another key": token(new_key("first")),
    "expired": token(exp=int(time.time()) - 61),
    "not yet": token(nbf=int(time.time()) + 900),
    "issued in the future": token(iat=int(time.time()) + 900),
    "no end": token(exp=None),
    "no entity": token(org=None),
    "a number as entity": token(org=1),
    "no subject": token(sub=None),
    "rubbish": "a.b.c",
    "empty signature": "a.b.",
    "oversized": token(x="y" * 9000),
}


@pytest.mark.parametrize("text", list(FAULTS.values()), ids=list(FAULTS))
async def test_faulty_token_is_refused_without_a_question(rig: PathRig, text: str) -> None:
    refused(await call(rig, text))
    assert (rig.directory.confirmations, rig.directory.key_questions) == (0, [])
    assert not rig.directory.tokens


@pytest.mark.parametrize("claims", [{"iss": "https://else.example"}, {"aud": "else"}, {"aud": ["else", "more"]}])
async def test_token_of_an_unknown_provider_is_refused_once_control_has_confirmed(
    rig: PathRig, claims: dict[str, Any]
) -> None:
    refused(await call(rig, token(**claims)))
    assert rig.directory.confirmed_as_ours == [False]
    rig.directory.unconfirmable = True
    refused(await call(rig, token(**claims)), 503)


async def test_unknown_entity_is_refused_once_control_has_confirmed(rig: PathRig) -> None:
    refused(await call(rig, token(org="nobody")))
    assert rig.directory.confirmed_as_ours == [True]
    rig.directory.unconfirmable = True
    refused(await call(rig, token(org="nobody")), 503)
    refused(await call(rig, token(new_key("first"), org="nobody")))  # a wrong signature learns nothing


async def test_group_of_another_workspace_is_unknown(rig: PathRig) -> None:
    models = rig.directory.groups["g1"].models
    rig.directory.workspaces["w2"] = WorkspaceRow("w2", "active", "basic", True)
    rig.directory.groups["g2"] = Group("g2", "w2", None, "theirs", Enforcement.INDEPENDENT, models)
    refused(await call(rig, token(org="theirs")))


async def test_token_for_two_workspaces_is_for_none(rig: PathRig) -> None:
    other = provider(audience="other", workspace_id="w2")
    rig.directory.providers[other.id] = other
    refused(await call(rig, token(aud=[AUDIENCE, "other"])))
    assert (await call(rig, token(aud=[AUDIENCE, "unknown"]))).status == 200


async def test_token_of_another_workspaces_audience_never_reaches_this_one(rig: PathRig) -> None:
    other = provider(audience="other", workspace_id="w2")
    rig.directory.providers[other.id] = other
    rig.directory.workspaces["w2"] = WorkspaceRow("w2", "active", "basic", True)
    refused(await call(rig, token(aud="other")))  # w2 has no such group
    assert not rig.journal.opened


async def test_unknown_kid_is_asked_for_once_and_found(rig: PathRig) -> None:
    second = new_key("second")
    row = provider(*ISSUER.keys, second)
    rig.directory.providers_on_question[row.id] = row
    assert (await call(rig, token(second))).status == 200
    assert rig.directory.key_questions == [row.id]


async def test_made_up_kid_is_refused_after_one_question(rig: PathRig) -> None:
    refused(await call(rig, token(new_key("made-up"))))
    assert len(rig.directory.key_questions) == 1


async def test_unknown_kid_is_503_while_keys_cannot_be_fetched(rig: PathRig) -> None:
    rig.directory.unfetchable = True
    refused(await call(rig, token(new_key("second"))), 503)
    assert (await call(rig, token())).status == 200


async def test_provider_whose_keys_were_never_fetched_is_503(rig: PathRig) -> None:
    row = provider(keys=None)
    rig.directory.providers[row.id] = row
    rig.directory.unfetchable = True
    refused(await call(rig, token()), 503)
    rig.directory.unfetchable = False
    rig.directory.providers_on_question[row.id] = provider()
    assert (await call(rig, token())).status == 200


async def test_only_key_without_kid_is_asked_for_when_it_does_not_verify(rig: PathRig) -> None:
    def nameless(key: SigningKey) -> IdentityProviderRow:
        public = {name: value for name, value in key.public.items() if name != "kid"}
        return provider(keys=usable_keys({"keys": [public]}))

    row = nameless(ISSUER.keys[0])
    rig.directory.providers[row.id] = row
    second = new_key("second")
    rig.directory.providers_on_question[row.id] = nameless(second)
    refused(await call(rig, token(second)))  # it names a key
    rig.directory.providers[row.id] = row
    assert (await call(rig, signed(second, {"alg": "ES256"}, ISSUER.claims(org=ENTITY)))).status == 200
    assert rig.directory.key_questions == [row.id] * 2


async def test_tokens_are_no_keys_and_keys_no_tokens(rig: PathRig) -> None:
    text = token(new_key("first"))
    rig.directory.keys[digest_of(text)] = rig.directory.keys[digest_of(KEY)]  # as if somebody had registered it
    refused(await call(rig, text))


@pytest.mark.parametrize("path", ["/models/m1/predict", "/models/m1/environments/production/predict"])
async def test_token_calls_no_model_directly(rig: PathRig, path: str) -> None:
    refused(await rig.serve(presenting(token(), path)))
    assert not rig.directory.tokens


async def test_key_beside_a_foreign_token_calls_without_a_question(rig: PathRig) -> None:
    rig.directory.unconfirmable = True
    foreign = token(iss="https://else.example")
    assert (await call(rig, foreign, x_api_key=KEY)).status == 200
    assert rig.journal.opened[0].api_key_prefix == KEY.partition(".")[0]
    assert (await call(rig, token(new_key("first")), x_api_key=KEY)).status == 200


async def test_key_beside_a_token_of_ours_is_ambiguous(rig: PathRig) -> None:
    text = token()
    for _ in range(2):
        refused(await call(rig, text, x_api_key=KEY), 400)
    assert (await call(rig, "not-a-key", x_api_key=text)).status == 200


async def test_workspace_that_may_not_call_is_told_so(rig: PathRig) -> None:
    rig.directory.workspaces["w1"] = replace(rig.directory.workspaces["w1"], billing="suspended")
    refused(await call(rig, token()), 402)
