"""Names of people in the audit trail, and what stands where keys have their prefix."""

import pytest

from control.records.audit import MAX_ACTOR_CHARS, Person
from control.records.policy import PresentedKey
from policy.credentials import KeyKind
from policy.keys.permissions import permissions_of
from policy.keys.roles import Role

ISSUER = "https://login.example"


def presented(person: Person | None = None, role: Role | None = Role.BILLING) -> PresentedKey:
    prefix = "tg_abcdefghijkl" if person is None else person.prefix
    return PresentedKey(prefix, KeyKind.WORKSPACE_MANAGE_ALL, "ws_1", True, "acme", role, person=person)


def test_trail_names_people_by_address_or_subject_and_keys_by_prefix() -> None:
    assert presented().actor == "tg_abcdefghijkl"
    assert presented(Person(ISSUER, "1234", "ada@example.com")).actor == f"ada@example.com ({ISSUER})"
    assert presented(Person(ISSUER, "1234")).actor == f"1234 ({ISSUER})"


def test_people_have_a_prefix_of_their_own_that_tells_no_address() -> None:
    ada = Person(ISSUER, "1234", "ada@example.com")
    assert ada.prefix == Person(ISSUER, "1234", "ada@new.example").prefix, "an address may change"
    assert ada.prefix not in {Person(ISSUER, "12345").prefix, Person(f"{ISSUER}1", "234").prefix}
    assert ada.prefix.startswith("person_")
    assert "ada" not in ada.prefix


@pytest.mark.parametrize(
    "address",
    [
        f"eve (https://other.example) ({ISSUER})",
        "tg_abcdefghijkl",
        "cli",
        "ada@example.com\n2026-01-01",
        "\u202emoc.elpmaxe@ada",
        "x" * 5000,
        "",
    ],
)
def test_no_address_misleads_whoever_reads_the_trail(address: str) -> None:
    name = Person(ISSUER, "1234", address).name
    assert name.endswith(f" ({ISSUER})")
    assert name.isprintable()
    assert name.count("(") == 1
    assert len(name) <= MAX_ACTOR_CHARS


def test_role_of_a_person_is_that_of_the_session() -> None:
    assert presented(Person(ISSUER, "1")).permissions == permissions_of(KeyKind.WORKSPACE_MANAGE_ALL, Role.BILLING)
    assert presented(role=None).effective_role is Role.ADMIN
