"""The networks that may use a key, as operators write them: CIDR text in one canonical spelling (RFC 4632, RFC 4291).

See docs/reference/management-api.md#settings-of-a-key.
"""

import re
from ipaddress import IPv6Network, ip_network

MAX_NETWORK_CHARS = 64
_FORM = re.compile(r"[0-9A-Fa-f:.]+(/[0-9]{1,3})?")
_MAPPED = IPv6Network("::ffff:0:0/96")


class NetworkError(ValueError):
    """The text is not a network that a key can have. The message says why, and what to write instead."""


def canonical_network(text: str) -> str:
    """Return the network in its one spelling; an address without `/` is that address alone.

    Refused is whatever two readers could read differently: bits of a host, masks in place of a length, zones, and
    IPv6 spellings of IPv4 addresses, because callers are compared by the IPv4 address that they have.
    """
    if "%" in text:
        raise NetworkError("an address of a network has no zone; leave out the % and what follows")
    if not _FORM.fullmatch(text):
        raise NetworkError("not an address or network in CIDR notation, such as 203.0.113.0/24 or 2001:db8::/32")
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise NetworkError(
            "not an address or network in CIDR notation, such as 203.0.113.0/24 or 2001:db8::/32"
        ) from None
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        address = network.network_address.ipv4_mapped
        raise NetworkError(f"an IPv4 network in the spelling of IPv6; write {address}/{network.prefixlen - 96}")
    address_text, _, length = text.partition("/")
    if length and ip_network(address_text).network_address != network.network_address:
        raise NetworkError(f"has bits of a host beyond its length; write {network}")
    return str(network)
