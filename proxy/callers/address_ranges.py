"""Sets of addresses, made of CIDR networks. An address is looked up by its number in half a microsecond or less."""

from bisect import bisect_right
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses, ip_address, ip_network

from policy.keys.networks import canonical_network

_IPV4 = 1 << 128
"""IPv4 addresses are numbered above all IPv6 ones, so `::/0` holds none of them."""


class AddressRanges:
    """The addresses of some networks. Raises ValueError or TypeError for what is no canonical network."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        members = [ip_network(canonical_network(text)) for text in networks]
        merged: list[IPv4Network | IPv6Network] = [
            *collapse_addresses(network for network in members if isinstance(network, IPv6Network)),
            *collapse_addresses(network for network in members if isinstance(network, IPv4Network)),
        ]
        self._firsts = [_number(network[0]) for network in merged]
        self._lasts = [_number(network[-1]) for network in merged]

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, number: int | None) -> bool:
        """Return whether the address with this number is among them. None is no address."""
        if number is None:
            return False
        place = bisect_right(self._firsts, number) - 1
        return place >= 0 and number <= self._lasts[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AddressRanges) and (self._firsts, self._lasts) == (other._firsts, other._lasts)

    def __hash__(self) -> int:
        return hash((*self._firsts, *self._lasts))


def number_of(text: str) -> int | None:
    """The number of the address; None if the text is none.

    An IPv4-mapped IPv6 address is the IPv4 address that it maps. A zone (`fe80::1%eth0`) says by which interface an
    address is reached, and is left out.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return _number(mapped or address)


def _number(address: IPv4Address | IPv6Address) -> int:
    return _IPV4 + int(address) if isinstance(address, IPv4Address) else int(address)
