"""Reads a job's metrics to their end: an answer of the API has the oldest points only.

See docs/reference/training.md#logs-and-metrics.
"""

from typing import Any

from commands.connection import Client


async def read_metrics(client: Client, path: str, **query: Any) -> list[dict[str, Any]]:
    """The metrics at `path` by name, each with all its points that the query selects, the oldest first."""
    points = dict[str, list[dict[str, Any]]]()
    since = None
    while True:
        page = (await client.call("GET", path, **query))["metrics"]
        for metric in page:
            before = points.setdefault(metric["name"], [])
            while before and before[-1]["timestamp"] == since:  # the answer has all points of its first moment again
                before.pop()
            before += metric["points"]
        latest = max((point["timestamp"] for metric in page for point in metric["points"]), default=since)
        if latest == since:
            return [{"name": name, "points": points[name]} for name in sorted(points)]
        query["since"] = since = latest
