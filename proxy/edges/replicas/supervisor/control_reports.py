"""Posts this machine's reports to control: `POST /internal/v1/deployments/{loads,wake,logs}`, `/internal/v1/traffic`,
`/internal/v1/requests`, `/internal/v1/machines`.

A return means that control has taken it. One outage of control is logged once, however many reports fail meanwhile.
Errors never carry the token.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import aiohttp
import orjson

from runtime.backoff import pause_s
from runtime.http.control_session import ControlSession
from runtime.log_lines import START_S, OutageLog
from runtime.tls.pinned import PeerTls

_TIMEOUT = aiohttp.ClientTimeout(total=5, sock_connect=2)
_HEADERS = {"Content-Type": "application/json"}
_MALFORMED = (400, 413, 422)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Topic:
    """A kind of report: its path, its name, and the consequence while control takes none.

    `is_new`: a control of the version before does not know it and answers 404. It needs no such reports.
    """

    path: str
    name: str
    consequence: str
    is_new: bool = False


DEPLOYMENTS = Topic(
    "/internal/v1/deployments/", "reports on deployments", "it wakes none, and statuses and logs lag behind"
)
TRAFFIC = Topic("/internal/v1/", "traffic figures", "those of the console lag behind")
REQUESTS = Topic("/internal/v1/", "rows of the list of requests", "that list lacks calls if this lasts", is_new=True)
MACHINES = Topic(
    "/internal/v1/",
    "reports of workers",
    "what dead ones reserved of spend limits and balances stays reserved, and if Redis has lost reservations, calls"
    " that HARD limits or balances bind are answered 503",
    is_new=True,
)


class ReportNotTakenError(Exception):
    """Control could not be reached, or has not taken the report. It may be sent again."""


class ReportRejectedError(Exception):
    """Control calls the report malformed. Sending it again would not help."""


async def send_periodically(
    send: Callable[[], Awaitable[None]], change: asyncio.Event, interval_s: float, longest_pause_s: float
) -> None:
    """Call `send` for ever, an interval after each time that `change` was set, which this clears before.

    The pauses grow while control does not take what `send` sends.
    """
    failures = 0
    while True:
        await change.wait()
        await asyncio.sleep(pause_s(failures, interval_s, longest_pause_s) if failures else interval_s)
        change.clear()
        try:
            await send()
        except ReportNotTakenError:  # logged by the client
            failures += 1
            change.set()
        else:
            failures = 0


class ControlReports:
    """A client of one control plane, for one topic. `silent_s`: see `OutageLog`."""

    def __init__(
        self,
        control_url: str,
        internal_token: str,
        topic: Topic = DEPLOYMENTS,
        silent_s: float = START_S,
        tls: PeerTls = True,
    ) -> None:
        self._topic = topic
        self._url = control_url.rstrip("/") + topic.path
        self._session = ControlSession(internal_token, _TIMEOUT, tls)
        self._outage = OutageLog(log, silent_s)

    async def post(self, what: str, report: dict[str, Any]) -> dict[str, Any] | None:
        """Post a report. `what`: the path's last part. Returns the answer's object, or None where control has not kept
        the report, because it does not know this kind yet. Raises `ReportNotTakenError` or `ReportRejectedError`."""
        status, text = await self._send(what, report)
        if status in _MALFORMED:
            raise ReportRejectedError(text[:500].decode(errors="replace") or f"status {status} without a text")
        if status != 200 and not (status == 404 and self._topic.is_new):
            raise self._not_taken(f"control answered {status} to {self._topic.path}{what}")
        self._outage.ends(f"Control takes {self._topic.name} again.")
        return _object(text) if status == 200 else None

    async def wake(self, model_id: str, deployment_id: str) -> bool:
        """Ask for a deployment to be woken. Returns whether control has taken it on: it may be gone, or too many."""
        try:
            status, _ = await self._send("wake", {"model_id": model_id, "deployment_id": deployment_id})
        except ReportNotTakenError:
            return False
        return status == 200

    async def close(self) -> None:
        await self._session.close()

    async def _send(self, what: str, report: dict[str, Any]) -> tuple[int, bytes]:
        """The answer's status and body. Raises `ReportNotTakenError` if there is none."""
        url = self._url + what
        data = BytesIO(orjson.dumps(report))
        try:
            async with self._session.request("POST", url, data=data, headers=_HEADERS) as answer:
                return answer.status, await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._not_taken(f"{type(error).__name__} at {url}") from None

    def _not_taken(self, cause: str) -> ReportNotTakenError:
        if not self._outage.cause:  # one line per outage, whatever the later causes
            self._outage.begins(
                f"Control takes no {self._topic.name} ({cause}): {self._topic.consequence}. Calls go on. Retrying."
                " Check control, TOLLGATE_CONTROL_URL and TOLLGATE_INTERNAL_TOKEN."
            )
        return ReportNotTakenError(cause)


def _object(text: bytes) -> dict[str, Any] | None:
    """The object of an answer. Another body is not control's: something in between has answered."""
    try:
        decoded = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return decoded if isinstance(decoded, dict) else None
