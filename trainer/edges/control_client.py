"""Control's internal API over HTTP, as a trainer uses it, and what its failures mean.

See docs/reference/training.md#internal-api.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp

from policy.training.caches import CacheSummary
from policy.training.reports import ABILITIES, BackendReport, CheckpointReport, Claimed, OutputBatch, WantedState
from policy.training.statuses import Outcome
from policy.training.weights import Weights
from policy.training.wire import added_objects
from runtime.http.control_session import ControlSession
from runtime.tls.pinned import PeerTls
from trainer.backend import EnvironmentRefusedError, JobEnvironment
from trainer.control import AnotherTrainerError, ControlAwayError, ControlRefusedError

TIMEOUT_S = 10.0
AGAIN_S = 1.0
_PATH = "/internal/v1/training"
_SPENT = "ENVIRONMENT_TOKEN_SPENT"
_MAX_MESSAGE_CHARS = 500
_NOT_NOW = frozenset((401, 403, 408, 429))
T = TypeVar("T")


class ControlClient:
    """Calls control."""

    def __init__(self, url: str, token: str, tls: PeerTls = True) -> None:
        self._url = url + _PATH
        self._session = ControlSession(token, aiohttp.ClientTimeout(total=TIMEOUT_S), tls)

    async def close(self) -> None:
        await self._session.close()

    async def sync(self, report: BackendReport) -> WantedState:
        status, answer = await self._ask("/sync", report.to_wire())
        if status == 409:
            raise AnotherTrainerError(_message(answer))
        return _read(WantedState.from_wire, _success(status, answer))

    async def claim(self, job_id: str, attempt: int) -> Claimed | None:
        body = {"attempt": attempt, "abilities": list(ABILITIES)}
        status, answer = await self._ask(f"/jobs/{quote(job_id, safe='')}/claim", body)
        return None if _is_refusal(status) else _read(Claimed.from_wire, _success(status, answer))

    async def environment(self, token: str) -> JobEnvironment:
        while True:
            try:
                status, answer = await self._ask("/environment", {"token": token})
                if _is_refusal(status) or _is_spent(answer):
                    raise _environment_refused(answer)
                return _read(_environment, _success(status, answer))
            except ControlAwayError:
                await asyncio.sleep(AGAIN_S)

    async def output(self, job_id: str, batch: OutputBatch) -> int:
        status, answer = await self._ask(f"/jobs/{quote(job_id, safe='')}/output", batch.to_wire())
        return _read(_offset, _accepted(status, answer))

    async def checkpoints(self, job_id: str, attempt: int, reports: Sequence[CheckpointReport]) -> None:
        body = {"attempt": attempt, "checkpoints": [report.to_wire() for report in reports]}
        status, answer = await self._ask(f"/jobs/{quote(job_id, safe='')}/checkpoints", body)
        _accepted(status, answer)

    async def cache(self, summary: CacheSummary) -> None:
        _accepted(*await self._ask("/caches", summary.to_wire()))

    async def cache_removed(self, project_id: str) -> None:
        _accepted(*await self._ask(f"/caches/{quote(project_id, safe='')}/removed", {}))

    async def _ask(self, path: str, body: Any) -> tuple[int, Any]:
        try:
            async with self._session.request("POST", self._url + path, json=body) as answer:
                return answer.status, await answer.json(content_type=None)
        except aiohttp.ClientConnectorError as error:
            raise ControlAwayError(f"no connection to {error.host} port {error.port}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ControlAwayError(str(error) or "no answer in time") from None
        except ValueError:
            raise ControlAwayError("the answer is not JSON; is TOLLGATE_CONTROL_URL the control plane?") from None


def _is_refusal(status: int) -> bool:
    return 400 <= status < 500 and status not in _NOT_NOW


def _success(status: int, answer: Any) -> Any:
    """The answer of a success. Anything else is an outage."""
    if status == 200:
        return answer
    hint = ". Check TOLLGATE_INTERNAL_TOKEN, which has to be the same" if status in (401, 403) else ""
    raise ControlAwayError(f"it answered {status}: {_message(answer)}{hint}")


def _accepted(status: int, answer: Any) -> Any:
    """The answer of a success. Raises ControlRefusedError if trying again is of no use."""
    if _is_refusal(status):
        raise ControlRefusedError(_message(answer))
    return _success(status, answer)


def _read(read: Callable[[Any], T], answer: Any) -> T:
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise ControlAwayError(
            f"its answer cannot be read ({error}); is TOLLGATE_CONTROL_URL a control plane of this version?"
        ) from None


def _message(answer: Any) -> str:
    text = answer.get("error") if isinstance(answer, dict) else None
    return (text if text and isinstance(text, str) else "no message")[:_MAX_MESSAGE_CHARS]


def _environment(answer: Any) -> JobEnvironment:
    variables = answer["environment"]
    secrets = answer["secrets"]
    if not isinstance(variables, dict) or not isinstance(secrets, list):
        raise TypeError("environment must be an object and secrets an array")
    if not all(isinstance(one, str) for one in (*variables, *variables.values(), *secrets)):
        raise TypeError("environment and secrets must be texts")
    return JobEnvironment(variables, secrets, tuple(map(Weights.from_wire, added_objects(answer, "weights"))))


def _is_spent(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("code") == _SPENT


def _environment_refused(answer: Any) -> EnvironmentRefusedError:
    """A spent token: the answer to an earlier try was lost, and so is this start."""
    return EnvironmentRefusedError(_message(answer), Outcome.REQUEUED if _is_spent(answer) else Outcome.DEPLOY_FAILED)


def _offset(answer: Any) -> int:
    offset = answer["offset"]
    if type(offset) is not int or offset < 0:
        raise TypeError("offset must be a whole number of at least 0")
    return offset
