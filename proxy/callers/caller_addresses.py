"""The address from which a call comes: the connection's peer, or whom the operator's own proxies name.

A peer is believed only where TOLLGATE_TRUSTED_PROXIES covers it, and then each hop that `X-Forwarded-For` names, from
the last one on, as far as it is covered too: the address is the first that is not. What stands before it, the caller
may have written. `Forwarded`, `X-Real-IP` and the PROXY protocol are not read (decision 0087).
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from policy.keys.networks import NetworkError, canonical_network
from proxy.callers.address_ranges import AddressRanges, number_of
from proxy.records.messages import Incoming

FIELD = "x-forwarded-for"
MAX_HOPS = 32
"""A list whose last elements are all covered is read no further: nobody has so many proxies."""
_KEPT = 4096
_MAX_KEPT_CHARS = 256
"""The longest list that is kept. A longer one is read anew with each call: a caller could fill the memory with them."""
_IN_FORM = re.compile(r"\[([^\]]*:[^\]]*)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")


class CallerAddresses:
    """Finds the address of each call's caller. An address is parsed once, for as long as it is used."""

    def __init__(self, trusted: AddressRanges) -> None:
        self._trusted = trusted
        self._peer = lru_cache(_KEPT)(self._read_peer)
        self._recent = lru_cache(_KEPT)(self._read_hops)

    def of(self, incoming: Incoming) -> int | None:
        """The number of the caller's address; None if it cannot be known."""
        number, is_trusted = self._peer(incoming.peer)
        if not is_trusted or incoming.header(FIELD) is None:
            return number
        fields = tuple(incoming.header_values(FIELD))
        read = self._recent if sum(map(len, fields)) <= _MAX_KEPT_CHARS else self._read_hops
        return read(number, fields)

    def _read_peer(self, peer: str) -> tuple[int | None, bool]:
        number = number_of(peer)
        return number, number in self._trusted

    def _read_hops(self, peer: int | None, fields: Sequence[str]) -> int | None:
        """Walk from the last hop towards the caller. Several fields are one list, whose empty elements count for
        nothing (RFC 9110 5.3 and 5.6.1). A covered hop that names no address leaves the caller unknown.
        """
        elements = ",".join(fields).rsplit(",", MAX_HOPS)
        number = peer
        for element in reversed(elements):
            text = element.strip(" \t")
            if not text:
                continue
            number = _number_of_hop(text)
            if number not in self._trusted:
                break
        return number


def trusted_proxies(text: str) -> AddressRanges:
    """Parse TOLLGATE_TRUSTED_PROXIES: networks, separated by commas. Raises ValueError."""
    entries = list(filter(None, map(str.strip, text.split(","))))
    return AddressRanges([_proxy_network(number, entry) for number, entry in enumerate(entries, 1)])


def _proxy_network(number: int, entry: str) -> str:
    try:
        network = canonical_network(entry)
    except NetworkError as error:
        raise NetworkError(f"entry {number}: {error}") from None
    if network.endswith("/0"):
        raise NetworkError(f"entry {number}: all addresses, so every caller could choose its own; name your proxies'")
    return network


def _number_of_hop(text: str) -> int | None:
    """The address that a proxy wrote: alone, with a port (`192.0.2.1:80`), or in brackets (`[2001:db8::1]:80`)."""
    match = _IN_FORM.fullmatch(text)
    return number_of((match[1] or match[2]) if match else text)
