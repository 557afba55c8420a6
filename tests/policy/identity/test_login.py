"""Settings and claims of the console's login: how pairs and names of claims are read, and which values count."""

from typing import Any

import pytest

from policy.identity.login_claims import fault_of_claims, is_left_out, names_issuer, role_values, verified_name
from policy.identity.login_settings import LoginSettings, RolePair, claim_path, issuer_url, role_pairs
from policy.keys.roles import Role

ISSUER = "https://sso.example/realms/acme"
SETTINGS = LoginSettings(ISSUER, "tollgate", "groups", role_pairs("ops=acme:operator"))


def test_pairs_are_read_from_the_right_so_values_may_have_any_character() -> None:
    text = r"cn=ops\,ou=it=acme:operator, /a:b/c = my space : viewer ,,ACME\team=ws_1:admin"
    assert role_pairs(text) == (
        RolePair("cn=ops,ou=it", "acme", Role.OPERATOR),
        RolePair("/a:b/c", "my space", Role.VIEWER),
        RolePair(r"ACME\team", "ws_1", Role.ADMIN),
    )


def test_pairs_of_values_are_each_once_and_exact() -> None:
    pairs = role_pairs("ops=acme:operator,ops=acme:operator,ops=other:viewer,Ops=acme:admin")
    settings = LoginSettings(ISSUER, "tollgate", "groups", pairs)
    assert [(pair.workspace, pair.role) for pair in settings.pairs_of(["ops", "ops", "x"])] == [
        ("acme", Role.OPERATOR),
        ("other", Role.VIEWER),
    ]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("groups", ("groups",)),
        ("realm_access.roles", ("realm_access", "roles")),
        (r"resource_access.my\.app.roles", ("resource_access", "my.app", "roles")),
        ("https://acme.example/roles", ("https://acme.example/roles",)),
    ],
)
def test_names_of_claims(name: str, path: tuple[str, ...]) -> None:
    assert claim_path(name) == path


def test_an_issuer_stays_as_it_is_written() -> None:
    for issuer in ("https://acme.auth0.example/", "https://sso.example", "http://localhost:8080/realms/a"):
        assert issuer_url(issuer) == issuer


@pytest.mark.parametrize(
    ("claims", "values"),
    [
        ({}, None),
        ({"groups": "a"}, ("a",)),
        ({"groups": ["a", "b", "a", "", 1, None, True, ["c"], {"d": "e"}]}, ("a", "b")),
        ({"groups": {"a": "b"}}, ()),
        ({"groups": None}, ()),
        ({"groups": []}, ()),
    ],
)
def test_only_texts_of_the_claim_count(claims: Any, values: Any) -> None:
    assert role_values(claims, "groups") == values


def test_a_path_leads_through_objects_alone() -> None:
    assert role_values({"a": {"b": ["x"]}}, "a.b") == ("x",)
    others: tuple[Any, ...] = ({"a": ["b"]}, {"a": "b"}, {"a": None}, {"a": {}}, {"a.b": "x"})
    for claims in others:
        assert role_values(claims, "a.b") is None


def test_an_address_counts_only_if_it_is_verified() -> None:
    for verified, values in ((True, ("a@x",)), (False, None), ("true", None), (1, None), (None, None)):
        claims = {"iss": ISSUER, "email": "a@x", "email_verified": verified}
        assert role_values(claims, "email") == values
        assert verified_name(claims) == (None if values is None else "a@x")


def test_a_sign_in_name_counts_at_entra_alone() -> None:
    entra = "https://login.microsoftonline.com/833ced3d/v2.0"
    assert verified_name({"iss": entra, "preferred_username": "ada@acme.example"}) == "ada@acme.example"
    for issuer in (ISSUER, "https://login.microsoftonline.com.evil.example/"):
        assert verified_name({"iss": issuer, "preferred_username": "bob@acme.example"}) is None


def test_a_claim_that_was_left_out() -> None:
    assert is_left_out({"_claim_names": {"groups": "src1"}}, "groups")
    assert is_left_out({"hasgroups": True}, "groups")
    for claims in ({}, {"_claim_names": "groups"}, {"_claim_names": {"x": "src1"}}):
        assert not is_left_out(claims, "groups")
    assert not is_left_out({"hasgroups": True}, "roles")


def test_google_may_leave_out_its_scheme_and_nobody_else() -> None:
    assert names_issuer("accounts.google.com", "https://accounts.google.com")
    assert not names_issuer("sso.example", "https://sso.example")
    for iss in (None, ISSUER + "/", [ISSUER], "accounts.google.com"):
        assert not names_issuer(iss, ISSUER)


def test_a_token_of_this_login_has_no_fault() -> None:
    claims = {"iss": ISSUER, "aud": ["tollgate", "other"], "azp": "tollgate", "sub": "1", "nonce": "n"}
    assert fault_of_claims(claims, SETTINGS, "n") == ""
    for nonce in (None, 1, ["n"], "", "N", "\ud800"):
        assert "another login" in fault_of_claims({**claims, "nonce": nonce}, SETTINGS, "n")
    for azp in (None, "", ["tollgate"]):
        assert "another client" in fault_of_claims({**claims, "azp": azp}, SETTINGS, "n")
