"""The address from which a call comes, and every way to forge one."""

from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.callers.address_ranges import AddressRanges, number_of
from proxy.callers.caller_addresses import MAX_HOPS, CallerAddresses, trusted_proxies
from tests.fakes.wire import FakeIncoming

BALANCER = "10.0.0.1"
CALLER = "192.0.2.7"
FORGED = "198.51.100.1"
TRUSTED = trusted_proxies("10.0.0.0/8, fd00::/8,fe80::1")


def address_of(peer: str, *fields: str, trusted: AddressRanges = TRUSTED) -> int | None:
    """The address of a call with these `X-Forwarded-For` fields."""
    incoming = FakeIncoming()
    incoming.peer = peer
    incoming.fields += [("x-forwarded-for", field) for field in fields]
    addresses = CallerAddresses(trusted)
    number = addresses.of(incoming)
    assert addresses.of(incoming) == number, "it is kept"
    return number


READ: dict[str, tuple[str, ...]] = {
    "alone": (CALLER,),
    "blanks": (f" \t{CALLER}\t ",),
    "a port": (f"{CALLER}:443",),
    "IPv4 in IPv6": (f"::ffff:{CALLER}",),
    "IPv4 in IPv6, in hexadecimal": ("::FFFF:c000:207",),
    "IPv4 in IPv6, in brackets": (f"[::ffff:{CALLER}]:443",),
    "a forged hop on the left": (f"{FORGED}, {CALLER}",),
    "a forged balancer on the left": (f"{FORGED}, {BALANCER}, {CALLER}",),
    "a forged field": (FORGED, CALLER),
    "an empty field": ("", CALLER),
    "empty elements": (f",, ,{CALLER},, ",),
    "a balancer behind": (f"{FORGED}, {CALLER}, 10.1.2.3",),
    "balancers in fields of their own": (FORGED, f"{CALLER}, 10.1.2.3:80", "[fd00::1]:80, ::ffff:10.9.9.9"),
    "a balancer with a zone": (f"{CALLER}, fe80::1%eth0",),
    "rubbish on the left": (f"unknown, _hidden, \xff\u0661, 10.0.0.256, {CALLER}",),
    "a huge list on the left": (",".join([FORGED] * 5000) + f",{CALLER}",),
    "quotes on the left": (f'"{FORGED}", for={FORGED};by=x, {CALLER}',),
}


@pytest.mark.parametrize("fields", READ.values(), ids=READ)
def test_address_is_the_last_hop_that_is_not_covered(fields: tuple[str, ...]) -> None:
    assert address_of(BALANCER, *fields) == number_of(CALLER)


@pytest.mark.parametrize("fields", [*READ.values(), (FORGED,), ("unknown",), (BALANCER,)])
@pytest.mark.parametrize("peer", [CALLER, f"::ffff:{CALLER}"])
def test_nothing_that_an_uncovered_peer_says_is_believed(peer: str, fields: tuple[str, ...]) -> None:
    assert address_of(peer, *fields) == number_of(CALLER)
    assert address_of(peer, *fields, trusted=AddressRanges()) == number_of(CALLER)


UNREADABLE = {
    "no address": "unknown",
    "an obfuscated hop": "_hidden",
    "a host name": "localhost",
    "an octet too large": "192.0.2.256",
    "octal": "0300.0.2.7",
    "three octets": "192.0.7",
    "a number": "3221225991",
    "digits of another script": "\u0661\u0669\u0662.0.2.7",
    "superscripts": "19\xb2.0.2.7",
    "an empty port": f"{CALLER}:",
    "a port of letters": f"{CALLER}:http",
    "a long port": f"{CALLER}:000080",
    "text behind brackets": "[2001:db8::1]x",
    "an open bracket": "[2001:db8::1",
    "IPv4 in brackets": f"[{CALLER}]",
    "IPv4 with a zone": f"{CALLER}%eth0",
    "an empty zone": "fe80::1%",
    "a network": f"{CALLER}/32",
    "a pair of `Forwarded`": f"for={CALLER}",
    "quotes": f'"{CALLER}"',
    "two addresses": f"{CALLER} {CALLER}",
    "a NUL": f"{CALLER}\0",
    "a long element": "1" * 60_000,
}


@pytest.mark.parametrize("element", UNREADABLE.values(), ids=UNREADABLE)
def test_covered_hop_that_names_no_address_leaves_it_unknown(element: str) -> None:
    assert address_of(BALANCER, f"{FORGED}, {element}") is None
    assert address_of(BALANCER, f"{FORGED}, {element}, 10.1.2.3") is None


def test_covered_peer_that_names_nobody_is_the_caller() -> None:
    for fields in ((), ("",), (" , ,", "")):
        assert address_of(BALANCER, *fields) == number_of(BALANCER)
    assert address_of(BALANCER, "10.1.1.1, 10.2.2.2") == number_of("10.1.1.1"), "a caller within the own network"


def test_list_of_covered_hops_is_read_up_to_a_bound() -> None:
    covered = ["10.1.1.1"] * (MAX_HOPS - 1)
    assert address_of(BALANCER, ",".join([CALLER, *covered])) == number_of(CALLER)
    assert address_of(BALANCER, ",".join([CALLER, CALLER, *covered, "10.1.1.1"])) is None
    assert address_of(BALANCER, CALLER + "," * 5000) is None


@pytest.mark.parametrize("peer", ["", "/run/proxy.sock", "nonsense"])
def test_peer_without_an_address_is_in_no_network(peer: str) -> None:
    assert address_of(peer, CALLER) is None
    assert None not in AddressRanges(["0.0.0.0/0", "::/0"])


def test_networks_hold_what_they_say() -> None:
    ranges = AddressRanges(["192.0.2.0/24", "192.0.2.8/32", "10.0.0.0/8", "2001:db8::/32", "fe80::/10"])
    inside = ("192.0.2.0", "192.0.2.8", "192.0.2.255", "10.255.0.0", "::ffff:10.0.0.1", "2001:db8::1", "fe80::1%eth0")
    outside = ("192.0.1.255", "192.0.3.0", "11.0.0.0", "::ffff:11.0.0.1", "2001:db9::", "::", "::a00:1", "9.9.9.9")
    assert all(number_of(text) in ranges for text in inside)
    assert not any(number_of(text) in ranges for text in outside)
    every_ipv6 = AddressRanges(["::/0"])
    assert number_of("2001:db8::1") in every_ipv6
    assert number_of("10.0.0.1") not in every_ipv6, "an IPv4 address is none of IPv6, however it is written"
    assert number_of("::ffff:10.0.0.1") not in every_ipv6
    assert number_of("10.0.0.1") in AddressRanges(["0.0.0.0/0"])


NETWORKS = ("10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/31", "11.0.0.0/8", "192.0.2.1/32", "0.0.0.0/5")


@given(st.sets(st.sampled_from(NETWORKS)), st.integers(0, 2**32 - 1))
def test_overlapping_and_adjacent_networks_hold_what_one_of_them_holds(networks: set[str], number: int) -> None:
    address = IPv4Address(number)
    as_one = AddressRanges(sorted(networks))
    assert (number_of(str(address)) in as_one) == any(
        number_of(str(address)) in AddressRanges([one]) for one in networks
    )


@given(st.text(max_size=40))
def test_text_is_an_address_exactly_if_it_reads_as_one(text: str) -> None:
    try:
        ip_address(text)
    except ValueError:
        assert number_of(text) is None
    else:
        assert number_of(text) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("10.0.0.1/8", "has bits of a host"),
        ("10.0.0.0/33", "not an address"),
        ("balancer.internal", "not an address"),
        ("10.0.0.0/8;fd00::/8", "not an address"),
        ("::ffff:10.0.0.0/104", "write 10.0.0.0/8"),
        ("fe80::1%eth0", "no zone"),
        ("10.0.0.0/8,0.0.0.0/0", "entry 2: all addresses"),
        ("::/0", "entry 1: all addresses"),
    ],
)
def test_malformed_networks_of_proxies_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        trusted_proxies(text)


def test_networks_of_proxies_may_be_addresses_and_none() -> None:
    assert not trusted_proxies("")
    assert not trusted_proxies(" , ")
    assert trusted_proxies("10.0.0.1, 2001:db8::1 ,") == AddressRanges(["10.0.0.1/32", "2001:db8::1/128"])
