"""The base URLs and addresses that may be dialled (docs/reference/management-api.md#egress-rules).

Control checks a URL when it is written; the proxy's egress connector checks each address again before it dials.
Pure: the caller resolves names. The URL parser is strict: it refuses whatever two parsers could read differently, so no
other parser has to agree with it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from policy.endpoints import EndpointRuleError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL_CHARS = 2048
MAX_REDIRECT_CHARS = 8192
"""Signed URLs, to which stores redirect, are longer than what people write."""


class HostRuleError(EndpointRuleError):
    """A URL or an address breaks the rules for what may be dialled."""


class EgressAllowError(ValueError):
    """TOLLGATE_EGRESS_ALLOW holds an entry that is neither a CIDR nor `name=ip:port`."""


class Reach(StrEnum):
    """The party that chose the destination of a call. It decides which addresses the call may reach."""

    OPERATOR = "OPERATOR"  # a vendor base URL of the settings: any address but metadata
    REPLICA = "REPLICA"  # a platform model's replica: public, or inside a CIDR of TOLLGATE_EGRESS_ALLOW
    CUSTOMER = "CUSTOMER"  # `base_url` of VENDOR_B_COMPATIBLE: public, or a `name=ip:port` link


@dataclass(frozen=True, slots=True)
class Link:
    """A private link: the address for a host name, whatever DNS says. Set by the operator: any address is allowed."""

    address: Address
    port: int


@dataclass(frozen=True, slots=True)
class EgressRules:
    """TOLLGATE_EGRESS_ALLOW, parsed. `platform_hosts`: our own public hosts; no customer may use them as upstream."""

    networks: tuple[Network, ...] = ()
    links: Mapping[str, Link] = field(default_factory=dict)
    platform_hosts: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, platform_hosts: Iterable[str] = ()) -> "EgressRules":
        """Parse comma-separated CIDRs and `name=ip:port` links. Raises `EgressAllowError`."""
        networks: list[Network] = []
        links: dict[str, Link] = {}
        for entry in filter(None, map(str.strip, text.split(","))):
            name, is_link, place = entry.partition("=")
            if is_link:
                links[_link_name(name, entry)] = _link(place, entry)
            else:
                networks.append(_network(entry))
        return cls(tuple(networks), links, frozenset(host.lower() for host in platform_hosts))


def platform_hosts(text: str, model_api_base_url: str | None) -> list[str]:
    """Our own public hosts: those of TOLLGATE_PLATFORM_HOSTS, and that of the model API."""
    model_api = urlsplit(model_api_base_url or "").hostname
    return [*filter(None, map(str.strip, text.split(","))), *([model_api] if model_api else [])]


@dataclass(frozen=True, slots=True)
class ParsedBase:
    """A URL whose text is acceptable. `address` is set if `host` (without brackets) is an IP literal."""

    scheme: str
    host: str
    port: int | None
    path: str
    address: Address | None = None


# --- addresses -------------------------------------------------------------------------------------------------------


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


# Where clouds serve instance credentials, and adjacent addresses. 168.63.129.16 is Azure's, 192.0.0.192
# Oracle's, 100.100.100.200 Alibaba's, fd20:ce::254 Google's, fe80::a9fe:a9fe OpenStack's.
_METADATA = _networks(
    *("169.254.169.0/24", "169.254.170.0/24", "168.63.129.16/32", "192.0.0.192/32", "100.100.100.200/32"),
    *("fd00:ec2::/32", "fd20:ce::/32", "fe80::a9fe:a9fe/128"),
)
# No TCP service can have these addresses, whatever the operator allows.
_NEVER = _networks("0.0.0.0/32", "224.0.0.0/4", "255.255.255.255/32", "::/128", "ff00::/8")
# IANA's special-purpose registry (RFC 6890 and its updates), without globally reachable blocks.
_SPECIAL_V4 = _networks(
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24"),
    *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
)
_GLOBAL_V6 = IPv6Network("2000::/3")
# Protocol assignments (Teredo, ORCHID, benchmarking …), documentation, 6to4.
_SPECIAL_V6 = _networks("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
_NAT64 = IPv6Network("64:ff9b::/96")
_TUNNELLED = _networks("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "2001::/32", "2002::/16")
_ISATAP = (0x00005EFE, 0x02005EFE)


def plain_address(address: Address) -> Address:
    """The address that a connection reaches: the embedded one for IPv4-mapped and NAT64 addresses."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Return whether `address` is reachable from the whole internet. Tunnels do not count: their end is unknown."""
    address = plain_address(address)
    if isinstance(address, IPv4Address):
        return not _within(address, _SPECIAL_V4)
    tunnelled = (int(address) >> 32) & 0xFFFFFFFF in _ISATAP
    return address in _GLOBAL_V6 and not tunnelled and not _within(address, _SPECIAL_V6)


def is_metadata(address: Address) -> bool:
    """Return whether `address`, or an address embedded in it, serves a cloud's instance credentials."""
    return any(_within(inner, _METADATA) for inner in _with_embedded(address))


def refusal(address: Address, reach: Reach, rules: EgressRules) -> str | None:
    """The reason why `address` may not be dialled, or None if it may."""
    address = plain_address(address)
    if is_metadata(address):
        return "metadata addresses are never dialled"
    if _within(address, _NEVER):
        return "unspecified, multicast and broadcast addresses are never dialled"
    if reach is Reach.OPERATOR or is_public(address):
        return None
    if reach is Reach.REPLICA:
        return (
            None if _within(address, rules.networks) else "the address is neither public nor in TOLLGATE_EGRESS_ALLOW"
        )
    return "the address is not public (private, loopback, link-local, reserved or tunnelled)"


def check_addresses(addresses: Iterable[Address], reach: Reach, rules: EgressRules, field: str = "base_url") -> None:
    """Raise unless every address that a name resolved to may be dialled."""
    for address in addresses:
        why = refusal(address, reach, rules)
        if why is not None:
            raise HostRuleError(field, f"{field}: {why}")


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)  # an IPv4 address is in no IPv6 network, and vice versa


def _with_embedded(address: Address) -> list[Address]:
    """`address`, and each IPv4 address that a transition mechanism would extract from it."""
    addresses: list[Address] = [address]
    if isinstance(address, IPv6Address):
        low = int(address) & 0xFFFFFFFF
        if address.ipv4_mapped is not None or address in _NAT64 or _within(address, _TUNNELLED):
            addresses += [IPv4Address(low), IPv4Address(low ^ 0xFFFFFFFF)]
        if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
            addresses.append(IPv4Address(low))
        addresses += filter(None, (address.sixtofour, *(address.teredo or ())))
    return addresses


# --- URLs ------------------------------------------------------------------------------------------------------------

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DECIMAL = r"(?:0|[1-9][0-9]{0,2})"
_CANONICAL_V4 = re.compile(rf"{_DECIMAL}(?:\.{_DECIMAL}){{3}}")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_DOT_SEGMENT = re.compile(r"(?:^|/)(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?")
_QUERY = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")

# Internal names: by standard (RFC 6761, 6762, 8375, 9476, ICANN's .internal), by cloud, or by convention.
_INTERNAL_SUFFIXES = frozenset(
    (
        *("localhost", "localdomain", "local", "internal", "intranet", "private", "corp", "home", "lan", "arpa"),
        *("svc", "consul", "alt", "onion"),
    )
)
_METADATA_HOSTS = frozenset(("metadata.goog", "metadata.azure.com", "metadata.tencentyun.com", "metadata.packet.net"))
# Public DNS zones whose names resolve to any chosen address, or to loopback.
_WILDCARD_DNS = frozenset(
    (
        *("nip.io", "sslip.io", "xip.io", "localtest.me", "lvh.me", "vcap.me", "lacolhost.com", "1u.ms", "rbndr.us"),
        "traefik.me",
    )
)


def check_base_url(url: str, rules: EgressRules | None = None, field: str = "base_url") -> ParsedBase:
    """Raise `HostRuleError` unless `url` may be the `base_url` of a VENDOR_B_COMPATIBLE target, or a receiver.

    The caller then checks what the name resolves to (`check_addresses`), unless the name is in `rules.links`.
    """
    parsed = _Reader(field, url).read(schemes=("https",), with_port=False)
    return _check_customer_host(parsed, rules or EgressRules(), field)


def check_download_url(url: str, rules: EgressRules, field: str, max_chars: int = MAX_URL_CHARS) -> ParsedBase:
    """Raise `HostRuleError` unless `url` may be that of a file for a job: like a base URL, and it may have a query."""
    without_query, mark, query = url.partition("?")
    if mark:
        _Reader(field, url, max_chars).check_query(query)
    parsed = _Reader(field, without_query, max_chars).read(schemes=("https",), with_port=False)
    return _check_customer_host(parsed, rules, field)


def check_replica_url(url: str, rules: EgressRules) -> ParsedBase:
    """Raise `HostRuleError` unless `url` may be a replica's. Like a base URL, but http and ports are allowed.

    Internal names are allowed if the operator allows any private network; then their addresses decide.
    """
    return _check_replica_host(
        _Reader("replicas", url).read(schemes=("http", "https"), with_port=True), rules, "replicas"
    )


def check_wake_url(url: str, rules: EgressRules) -> ParsedBase:
    """Raise `HostRuleError` unless `url` may be a deployment's wake hook: like a replica's, and may have a query."""
    without_query, mark, query = url.partition("?")
    reader = _Reader("wake_url", url)
    if mark:
        reader.check_query(query)
    parsed = _Reader("wake_url", without_query).read(schemes=("http", "https"), with_port=True)
    return _check_replica_host(parsed, rules, "wake_url")


def _check_customer_host(parsed: ParsedBase, rules: EgressRules, field: str) -> ParsedBase:
    if parsed.address is not None:
        check_addresses((parsed.address,), Reach.CUSTOMER, rules, field)
    elif parsed.host not in rules.links:
        _check_public_name(parsed.host, rules, field)
    return parsed


def _check_replica_host(parsed: ParsedBase, rules: EgressRules, field: str) -> ParsedBase:
    if parsed.address is not None:
        check_addresses((parsed.address,), Reach.REPLICA, rules, field)
    elif parsed.host not in rules.links:
        _check_not_metadata(parsed.host, field)
        if not rules.networks:
            _check_public_name(parsed.host, EgressRules(), field)
    return parsed


def is_internal_name(host: str) -> bool:
    """Return whether `host` (lower case) is a single label, or has a suffix that is never public."""
    labels = host.split(".")
    return len(labels) == 1 or labels[-1] in _INTERNAL_SUFFIXES


def _check_public_name(host: str, rules: EgressRules, field: str) -> None:
    _check_not_metadata(host, field)
    if is_internal_name(host):
        raise HostRuleError(field, f"{field}: internal and local host names may not be used")
    if _is_below(host, _WILDCARD_DNS):
        raise HostRuleError(field, f"{field}: names made to resolve to any address may not be used")
    if _is_below(host, rules.platform_hosts):
        raise HostRuleError(field, f"{field}: the platform's own hosts may not be used")


def _check_not_metadata(host: str, field: str) -> None:
    if _is_below(host, _METADATA_HOSTS) or host.startswith(("metadata.google.", "instance-data.")):
        raise HostRuleError(field, f"{field}: metadata hosts may not be used")


def _is_below(host: str, suffixes: Iterable[str]) -> bool:
    return any(host == suffix or host.endswith(f".{suffix}") for suffix in suffixes)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Parses one URL. Errors name the field, never the URL: it may hold a credential."""

    field: str
    url: str
    max_chars: int = MAX_URL_CHARS

    def read(self, schemes: tuple[str, ...], with_port: bool) -> ParsedBase:
        self._check_characters()
        scheme, separator, rest = self.url.partition("://")
        if not separator or scheme.lower() not in schemes:
            raise self._error(f"must start with {' or '.join(f'{s}://' for s in schemes)}")
        authority, slash, path = rest.partition("/")
        self._check_path(slash + path)
        if any(mark in authority for mark in "?#"):
            raise self._error("must have no query and no fragment")
        if "@" in authority:
            raise self._error("must hold no credentials")
        host, port = self._split_port(authority, with_port)
        return self._named(scheme.lower(), host.lower(), port, (slash + path).rstrip("/"))

    def check_query(self, query: str) -> None:
        self._check_characters()
        if not _QUERY.fullmatch(query) or _BAD_ESCAPE.search(query):
            raise self._error("the query holds a character that must be percent-encoded")

    def _check_characters(self) -> None:
        if not self.url or len(self.url) > self.max_chars:
            raise self._error(f"must have 1 to {self.max_chars} characters")
        if not self.url.isascii():
            raise self._error("must be ASCII; write an international name in its xn-- form")
        if any(not "!" <= char <= "~" for char in self.url) or "\\" in self.url:
            raise self._error("must hold no spaces, backslashes or control characters")

    def _check_path(self, path: str) -> None:
        if "?" in path or "#" in path:
            raise self._error("must have no query and no fragment")
        if not _PATH.fullmatch(path) or _BAD_ESCAPE.search(path):
            raise self._error("the path holds a character that must be percent-encoded")
        if "//" in path or _DOT_SEGMENT.search(path):
            raise self._error("the path must hold no empty, . or .. segment")

    def _split_port(self, authority: str, with_port: bool) -> tuple[str, int | None]:
        bracket = authority.rfind("]")
        host, colon, port = authority[bracket + 1 :].partition(":")
        host = authority[: bracket + 1] + host
        if not colon:
            return host, None
        if not with_port:
            raise self._error("must have no port, not even an empty one")
        if not _PORT.fullmatch(port) or int(port) > 65535:
            raise self._error("the port must be a number from 1 to 65535")
        return host, int(port)

    def _named(self, scheme: str, host: str, port: int | None, path: str) -> ParsedBase:
        if host.startswith("["):
            return ParsedBase(scheme, host[1:-1], port, path, self._ipv6(host))
        if _NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]):
            return ParsedBase(scheme, host, port, path, self._ipv4(host))
        if len(host) > 253 or not all(map(_LABEL.fullmatch, host.split("."))):
            raise self._error("the host must be a name of letters, digits and hyphens, without a dot at its end")
        return ParsedBase(scheme, host, port, path)

    def _ipv6(self, host: str) -> IPv6Address:
        """Refuses IPv6 forms that embed an IPv4 address: write that address as IPv4."""
        try:
            address = IPv6Address(host[1:-1] if host.endswith("]") else "")
        except ValueError:
            raise self._error("the host is not an IPv6 address") from None
        if address.scope_id is not None or len(_with_embedded(address)) > 1:
            raise self._error("an IPv6 address must have no zone and carry no IPv4 address")
        return address

    def _ipv4(self, host: str) -> IPv4Address:
        """Parse four decimal numbers, and no other form that resolvers accept: 0177.1, 2130706433, 0x7f.1."""
        try:
            address = IPv4Address(host if _CANONICAL_V4.fullmatch(host) else "")
        except ValueError:
            raise self._error("an IPv4 address must be written as four decimal numbers") from None
        return address

    def _error(self, message: str) -> HostRuleError:
        return HostRuleError(self.field, f"{self.field}: {message}")


# --- TOLLGATE_EGRESS_ALLOW -------------------------------------------------------------------------------------------


def _network(entry: str) -> Network:
    try:
        return ip_network(entry)
    except ValueError:
        raise EgressAllowError(f"{entry!r} is neither a CIDR nor name=ip:port") from None


def _link_name(name: str, entry: str) -> str:
    name = name.strip().lower()
    is_name = all(map(_LABEL.fullmatch, name.split("."))) and not _NUMERIC_LABEL.fullmatch(name.rpartition(".")[2])
    if not is_name:
        raise EgressAllowError(f"{entry!r}: the left side of a link is a host name")
    return name


def _link(place: str, entry: str) -> Link:
    host, _, port = place.strip().rpartition(":")
    try:
        address = ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        raise EgressAllowError(f"{entry!r}: the right side of a link is ip:port") from None
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise EgressAllowError(f"{entry!r}: the right side of a link is ip:port")
    if is_metadata(address) or _within(address, _NEVER):
        raise EgressAllowError(f"{entry!r}: that address is never dialled")
    return Link(address, int(port))
