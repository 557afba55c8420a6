"""Asks a replica whether it is healthy."""

from dataclasses import dataclass
from enum import Enum

import aiohttp

_NO_SUCH_PATH = frozenset((404, 405, 501))


class Health(Enum):
    """The outcome of a probe. NO_PATH: the server answers, and has no such path."""

    GOOD = "good"
    NO_PATH = "no path"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The outcome of a probe, and in words what the replica did."""

    health: Health
    what: str


class HealthProbe:
    """Probes on a connection of their own each: a kept one would outlive the server's patience."""

    def __init__(self) -> None:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, url: str, timeout_s: float) -> ProbeResult:
        """`GET url`; a 2xx within the time is good."""
        try:
            timeout = aiohttp.ClientTimeout(total=timeout_s)
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as answer:
                return ProbeResult(_health_of(answer.status), f"answers {answer.status}")
        except aiohttp.ClientConnectorError:
            return ProbeResult(Health.BAD, "refuses connections")
        except TimeoutError:
            return ProbeResult(Health.BAD, f"does not answer within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return ProbeResult(Health.BAD, f"breaks the connection ({type(error).__name__})")


def _health_of(status: int) -> Health:
    if status in _NO_SUCH_PATH:
        return Health.NO_PATH
    return Health.GOOD if 200 <= status < 300 else Health.BAD
