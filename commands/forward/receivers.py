"""The receivers by name: what each needs of the flags, and which class it is."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from commands.forward import cloud_events, stripe_meters
from commands.records.receiver import Receiver
from runtime.environment import http_url

DEFAULT_URLS: Mapping[str, str | None] = {
    "stripe": "https://api.stripe.com",
    "openmeter": "https://openmeter.cloud",
    "cloudevents": None,
}
FILES = ("jsonl", "parquet")
KEY_NAMES = {"stripe": "STRIPE_API_KEY", "openmeter": "OPENMETER_API_KEY", "cloudevents": "TOLLGATE_FORWARD_KEY"}
_BATCHES = {"stripe": 100, "openmeter": 100, "cloudevents": 100, "jsonl": 1000, "parquet": 50_000}
_ENTITY = "{external_entity_id}"


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of events, as flags and environment say."""

    kind: str
    batch_events: int
    url: str = ""
    key: str | None = field(default=None, repr=False)
    output: Path | None = None
    source: str = ""
    event_type: str = ""
    meters: tuple[stripe_meters.Meter, ...] = ()
    customer: str | None = None
    customers: Path | None = None
    details: bool = False
    """True if events have their details."""

    @classmethod
    def of(cls, flags: Mapping[str, Any], environ: Mapping[str, str]) -> "Destination":
        """Raises ValueError naming the flag or variable that is missing or wrong."""
        kind = flags["kind"]
        batch_events = flags["batch"] or _BATCHES[kind]
        if kind in FILES:
            if flags["output"] is None:
                raise ValueError(f"--to {kind} needs --output")
            return cls(kind, batch_events, output=flags["output"], details=flags["details"])
        url = _url(kind, flags["receiver_url"])
        key = environ.get(KEY_NAMES[kind], "").strip() or None
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ValueError(f"{KEY_NAMES[kind]} has characters that no key has, such as a line break")
        if key is not None and not _is_safe(url):
            raise ValueError(f"{url} would show the key of {KEY_NAMES[kind]} to others on the way: use https")
        if kind == "stripe":
            return cls(kind, batch_events, url, key, **_stripe(flags, key))
        envelope = {"source": flags["source"], "event_type": flags["event_type"]}
        return cls(kind, batch_events, url, key, **envelope, details=flags["details"])

    def purpose(self) -> dict[str, Any]:
        """Return what the state file is for: another purpose needs another state."""
        if self.kind == "stripe":
            meters = [f"{meter.event_name}={meter.figure}" for meter in self.meters]
            return {"to": self.kind, "receiver": self.url, "meters": meters}
        details = {"details": self.details or None}  # None as in the states that older versions wrote
        if self.output is not None:
            return {"to": self.kind, "output": str(self.output.resolve()), **details}
        return {"to": self.kind, "receiver": self.url, "source": self.source, "type": self.event_type, **details}


def receiver_for(destination: Destination) -> Receiver:
    """Make the receiver, within a running event loop. Raises ReceiverError."""
    if destination.output is not None:
        return _files(destination, destination.output)
    from commands.edges.forwarding.http_sender import HttpSender

    if destination.kind == "stripe":
        customer = _customer_by(destination)
        sender = HttpSender(destination.url, destination.key)
        return stripe_meters.StripeReceiver(sender, destination.meters, customer, destination.batch_events)
    data = cloud_events.metered if destination.kind == "openmeter" else cloud_events.listed
    path = cloud_events.OPENMETER_PATH if destination.kind == "openmeter" else ""
    envelope = cloud_events.Envelope(destination.source, destination.event_type, data)
    sender = HttpSender(destination.url, destination.key)
    return cloud_events.CloudEventsReceiver(sender, path, envelope, destination.batch_events)


def _files(destination: Destination, output: Path) -> Receiver:
    from commands.edges.forwarding.event_files import JsonlFile
    from commands.edges.forwarding.parquet_parts import ParquetParts

    if destination.kind == "jsonl":
        return JsonlFile(output, destination.batch_events)
    return ParquetParts(output, destination.batch_events, details=destination.details)


def _stripe(flags: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    if key is None:
        raise ValueError("--to stripe needs STRIPE_API_KEY in the environment")
    meters = tuple(stripe_meters.read_meter(text) for text in flags["meters"])
    if not meters:
        raise ValueError("--to stripe needs --meter NAME=FIGURE, once or more")
    if len({meter.figure for meter in meters}) < len(meters):
        raise ValueError("--meter: each figure at most once")
    if (flags["customer"] is None) == (flags["customers"] is None):
        raise ValueError("--to stripe needs either --customer or --customers")
    if flags["customer"] is not None and _ENTITY not in flags["customer"]:
        raise ValueError(f"--customer needs {_ENTITY} in it; all usage would be billed to one customer")
    details = any(meter.figure in stripe_meters.DETAIL_FIGURES for meter in meters)
    return {"meters": meters, "customer": flags["customer"], "customers": flags["customers"], "details": details}


def _customer_by(destination: Destination) -> stripe_meters.Customer:
    if destination.customers is not None:
        from commands.edges.forwarding.customers import read_customers

        return read_customers(destination.customers).get
    template = destination.customer or _ENTITY
    return lambda entity: template.replace(_ENTITY, entity)


def _url(kind: str, text: str | None) -> str:
    url = text or DEFAULT_URLS[kind]
    if url is None:
        raise ValueError(f"--to {kind} needs --receiver-url")
    try:
        return http_url(url)
    except ValueError as error:
        raise ValueError(f"--receiver-url: {error}") from None


def _is_safe(url: str) -> bool:
    """Return whether nobody on the way can read a key: TLS, or this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost"
    return parts.scheme == "https" or is_here
