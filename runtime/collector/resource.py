"""The resource that spans and metrics of a process are of."""

import socket
from collections.abc import Mapping
from importlib.metadata import version

from opentelemetry.sdk.resources import OTELResourceDetector, Resource

PROXY_SERVICE = "tollgate-proxy"
CONTROL_SERVICE = "tollgate-control"
"""The values of `service.name`."""


def resource_of(service: str, attributes: Mapping[str, str]) -> Resource:
    """`service`: the value of `service.name`. The environment's attributes win over these."""
    ours = {"service.name": service, "service.version": version("tollgate"), **attributes}
    return Resource.create({**ours, **OTELResourceDetector().detect().attributes})


def resource_at(service: str, port: int) -> Resource:
    """The resource of the process that listens on this port of this host. It stays the same when it starts again."""
    host = socket.gethostname()
    return resource_of(service, {"service.instance.id": f"{host}:{port}", "host.name": host})
