"""Reads the metrics of proxies (docs/reference/metrics.md#access)."""

import asyncio
import math
import time

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from commands.errors import AwayError, RefusedError
from commands.records.metrics_sample import IN_FLIGHT, READ, Sample

_TIMEOUT_S = 5.0
"""The bound for one look: a proxy that hangs holds up the others' figures for so long."""


class MetricsReader:
    """A client of /metrics, with the operator's token, or none on the proxy's own machine."""

    def __init__(self, metrics_token: str) -> None:
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {metrics_token}"} if metrics_token else {},
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def read(self, url: str) -> Sample:
        """One look. Raises AwayError or RefusedError."""
        try:
            async with self._session.get(url, headers={"Accept": "text/plain"}, allow_redirects=False) as answer:
                status = answer.status
                body = await answer.read()
                at_s = time.monotonic()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise AwayError(f"{url} does not answer ({str(error) or type(error).__name__})") from None
        if status in (401, 403):
            raise RefusedError(f"{status}: {url} refuses the metrics. Set TOLLGATE_METRICS_TOKEN to the proxy's")
        if status != 200:
            raise AwayError(f"{url} answers {status}, not metrics")
        try:
            return await asyncio.to_thread(sample_of, body, at_s)
        except ValueError:  # its text quotes the answer
            raise AwayError(f"{url} does not answer with a proxy's metrics. Name its admin port") from None


def sample_of(body: bytes, at_s: float) -> Sample:
    """Read Prometheus text. ValueError if it is not a proxy's. The other lines are not parsed: they are many."""
    lines = [line for line in body.decode().split("\n") if line.startswith(READ)]
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    samples = [sample for family in families for sample in family.samples if sample.name in READ]
    if not any(sample.name == IN_FLIGHT for sample in samples):
        raise ValueError("not the metrics of a proxy")
    values = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for sample in samples
        if math.isfinite(sample.value)
    }
    return Sample(at_s, values)
