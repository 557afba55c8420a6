"""A call with a token that was verified before costs what one with a key costs. Prints both: `pytest -s`."""

import time

from policy.credentials import TOKEN_ID, credential_id
from policy.identity.providers import IdentityProviderRow, provider_id
from policy.identity.public_keys import usable_keys
from policy.keys.settings import KeySettings
from policy.snapshot import Row
from tests.issuer import AUDIENCE, Issuer
from tests.proxy.budget.canned_worker import CALLERS, KEY, REQUEST, canned_worker, key_row
from tests.proxy.budget.counting import report, spent_per_call

ISSUER = Issuer(port=1)


def provider_row() -> Row:
    """The issuer, for the workspace of the canned worker."""
    keys = usable_keys({"keys": [key.public for key in ISSUER.keys]})
    id = provider_id(ISSUER.url, AUDIENCE)
    row = IdentityProviderRow(id, "ws_1", ISSUER.url, AUDIENCE, "org", keys)
    return Row("identity_provider", id, 1, row.to_wire())


def request_with(token: str) -> bytes:
    return REQUEST.replace(KEY.encode(), token.encode())


def test_canned_call_with_a_token_is_served() -> None:
    token = ISSUER.token(org="customer-2")
    assert credential_id(token).startswith(TOKEN_ID)
    with canned_worker() as (runner, worker):
        worker.publish(provider_row())
        callers = runner.run(worker.serve(2, request_with(token)))
        assert worker.loop.redis.takes == CALLERS * 2
    assert all(answer.startswith(b"HTTP/1.1 200") for caller in callers for answer in caller.answers)


def test_call_with_a_remembered_token_costs_no_more_than_one_with_a_key_that_ends() -> None:
    """A key without an end is spared the look at the clock."""
    ends = KeySettings(expires_at_ms=int(time.time() * 1000) + 3_600_000)
    by_key = spent_per_call(REQUEST, key_row(settings=ends))
    by_token = spent_per_call(request_with(ISSUER.token(org="customer-2")), provider_row())
    print("with a key that ends", report(by_key), "with a token", report(by_token), sep="\n")
    for name in ("calls", "c_calls", "bytecodes"):
        key_cost = sum(getattr(by_key, name).values())
        token_cost = sum(getattr(by_token, name).values())
        assert token_cost <= key_cost * 1.005, name
