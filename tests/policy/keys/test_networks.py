"""Networks of keys: one spelling for each, and nothing that two readers could read differently."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.keys.networks import NetworkError, canonical_network

CANONICAL = {
    "192.0.2.7": "192.0.2.7/32",
    "192.0.2.0/24": "192.0.2.0/24",
    "0.0.0.0/0": "0.0.0.0/0",
    "::/0": "::/0",
    "::1": "::1/128",
    "2001:DB8:0:0:0:0:0:0/32": "2001:db8::/32",
    "64:ff9b::192.0.2.1": "64:ff9b::c000:201/128",
    "10.0.0.0/08": "10.0.0.0/8",
}


@pytest.mark.parametrize("text", CANONICAL)
def test_a_network_has_one_spelling(text: str) -> None:
    assert canonical_network(text) == CANONICAL[text]


REFUSED = {
    "10.1.2.3/8": "write 10.0.0.0/8",
    "2001:db8::1/32": "write 2001:db8::/32",
    "::ffff:192.0.2.1": "write 192.0.2.1/32",
    "::ffff:0:0/96": "write 0.0.0.0/0",
    "::FFFF:c000:0200/120": "write 192.0.2.0/24",
    "fe80::1%eth0": "no zone",
    "fe80::%25eth0/64": "no zone",
    "10.0.0.0/255.0.0.0": "CIDR",
    "10.0.0.0/0.255.255.255": "CIDR",
    "010.0.0.1": "CIDR",
    "10.1": "CIDR",
    "167772161": "CIDR",
    "0x0a000001": "CIDR",
    "10.0.0.0/33": "CIDR",
    "::/129": "CIDR",
    "10.0.0.0/": "CIDR",
    "10.0.0.0/8/8": "CIDR",
    "10.0.0.0/-1": "CIDR",
    "10.0.0.0/٨": "CIDR",
    " 10.0.0.1": "CIDR",
    "10.0.0.1\n": "CIDR",
    "[::1]": "CIDR",
    "": "CIDR",
    "*": "CIDR",
    "localhost": "CIDR",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(NetworkError, match=REFUSED[text]):
        canonical_network(text)


@given(st.text(alphabet="0123456789abcf:./%x ", max_size=45))
def test_a_canonical_network_is_its_own_spelling(text: str) -> None:
    try:
        canonical = canonical_network(text)
    except NetworkError:
        return
    assert canonical_network(canonical) == canonical == str(ip_network(text))
