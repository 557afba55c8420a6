"""`POST /internal/v1/deployments/…`: what proxies tell of deployments.

`loads`: a machine's figures and the health of replicas. `wake`: somebody asks for a deployment to be woken. `logs`: a
line per call. 400 names what is malformed, and nothing of the batch is taken. Deployments that are gone are ignored.
"""

import re

from aiohttp import web

from control.api.protocol.errors import ProblemError, bad_request
from control.api.protocol.reports import Json, items, received
from control.errors import InvalidFieldError
from control.records.logs import LogLine
from control.resources.logs import LEVELS
from policy.deployment_load import DeploymentLoad

_MAX_URLS = 1000
_MOST = {"in_flight": 2**31 - 1, "queued": 2**31 - 1, "parked": 2**31 - 1, "last_request_at_ms": 2**53 - 1}
_MAX_TEXT = 128
_MAX_URL = 2048
_MAX_MESSAGE = 65_536
_MACHINE = re.compile(r"[0-9a-f]{16}")
_TIMESTAMP = re.compile(r"[0-9]{1,18}|[1-8][0-9]{18}")


async def _post_loads(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    machine = body.get("machine")
    if not isinstance(machine, str) or not _MACHINE.fullmatch(machine):
        raise InvalidFieldError("machine", "machine must be 16 hexadecimal digits")
    await dependencies.load_reports.accept(machine, await items(body, "loads", _load))
    return web.json_response({})


async def _post_wake(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    try:
        model_id = _text(body, "model_id")
        deployment_id = _text(body, "deployment_id")
    except ValueError as error:
        raise bad_request(str(error)) from None
    if not await dependencies.load_reports.wake(model_id, deployment_id):
        raise ProblemError(503, "TOO_MANY_WAKE_HOOKS", "Too many wake hooks of this workspace are being asked")
    return web.json_response({})


async def _post_logs(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    await dependencies.deployment_logs.write(await items(body, "lines", _line))
    return web.json_response({})


def _load(wire: Json) -> DeploymentLoad:
    load = DeploymentLoad.from_wire(wire)
    _check(load)
    return load


def _check(load: DeploymentLoad) -> None:
    """Refuse what no column can hold: in the database it would look like an outage. `from_wire` has checked types."""
    for name in ("model_id", "deployment_id"):
        _check_text(name, getattr(load, name), _MAX_TEXT)
    for name, most in _MOST.items():
        if (getattr(load, name) or 0) > most:
            raise ValueError(f"{name} must be at most {most}")
    for name in ("healthy", "unhealthy"):
        urls = getattr(load, name)
        if len(urls) > _MAX_URLS or any(len(url) > _MAX_URL for url in urls):
            raise ValueError(f"{name} must be at most {_MAX_URLS} URLs of at most {_MAX_URL} characters")


def _line(wire: Json) -> tuple[str, LogLine]:
    timestamp = wire.get("timestamp")
    level = wire.get("level")
    if not isinstance(timestamp, str) or not _TIMESTAMP.fullmatch(timestamp):
        raise ValueError("timestamp must be nanoseconds since the epoch, as text")
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}")
    return _text(wire, "deployment_id"), LogLine(
        timestamp_ns=int(timestamp),
        level=level,
        message=_text(wire, "message", _MAX_MESSAGE, least=0),
        replica=None if wire.get("replica") is None else _text(wire, "replica", _MAX_URL),
        request_id=None if wire.get("request_id") is None else _text(wire, "request_id"),
    )


def _text(wire: Json, name: str, longest: int = _MAX_TEXT, least: int = 1) -> str:
    text = wire.get(name)
    if not isinstance(text, str):
        raise ValueError(f"{name} must be text")
    _check_text(name, text, longest, least)
    return text


def _check_text(name: str, text: str, longest: int, least: int = 1) -> None:
    if not least <= len(text) <= longest or "\0" in text:
        raise ValueError(f"{name} must be text of {least} to {longest} characters")


ROUTES = [
    web.post("/internal/v1/deployments/loads", _post_loads),
    web.post("/internal/v1/deployments/wake", _post_wake),
    web.post("/internal/v1/deployments/logs", _post_logs),
]
