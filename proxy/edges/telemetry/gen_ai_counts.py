"""Counts tokens and durations of calls to upstreams for the `gen_ai.client.*` metrics, in one worker, between flushes.

Only where metrics are sent by OTLP. It is given many ended calls at once, off the path of a call.

See docs/reference/metrics.md#gen_ai.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from policy.billing import FIRST_ERROR_STATUS
from proxy.accounting.request_report import RequestReport
from proxy.edges.telemetry.gen_ai_names import OPERATIONS, PROVIDER_NAMES

DURATION_BOUNDS_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKEN_BOUNDS = tuple(4**power for power in range(14))
"""The bounds of both as the conventions recommend them."""


class _Counts:
    """Buckets and sums of calls that share a key."""

    __slots__ = ("duration_s", "durations", "input_tokens", "inputs", "output_tokens", "outputs")

    def __init__(self) -> None:
        self.durations = [0] * (len(DURATION_BOUNDS_S) + 1)
        self.duration_s = 0.0
        self.inputs = [0] * (len(TOKEN_BOUNDS) + 1)
        self.input_tokens = 0
        self.outputs = [0] * (len(TOKEN_BOUNDS) + 1)
        self.output_tokens = 0


class GenAiCounts:
    """Counts of the calls through slugs that reached an upstream, since the last flush."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str, str, str | None, str], _Counts] = {}
        """The counts by workspace, slug, path, the target's provider and model, and type of error, "" without one."""

    def add(self, calls: Sequence[RequestReport]) -> None:
        """Count calls that have ended."""
        rows = self._counts
        for call in calls:
            route = call.route
            if route is None or not call.upstream_s:
                continue
            labels = call.labels
            target = route.endpoint.target
            error = "" if call.status < FIRST_ERROR_STATUS else call.cause or str(call.status)
            key = (labels.workspace_id, labels.slug, labels.path, target.provider, target.target_model, error)
            row = rows.get(key)
            if row is None:
                row = rows[key] = _Counts()
            row.durations[bisect_left(DURATION_BOUNDS_S, call.upstream_s)] += 1
            row.duration_s += call.upstream_s
            if call.bill is not None:
                inputs, outputs, _cached_inputs = call.bill.tokens
                if inputs:
                    row.inputs[bisect_left(TOKEN_BOUNDS, inputs)] += 1
                    row.input_tokens += inputs
                if outputs:
                    row.outputs[bisect_left(TOKEN_BOUNDS, outputs)] += 1
                    row.output_tokens += outputs

    def drain(self) -> list[list[Any]]:
        """Return and drop the counts, as they go over the channel: attributes, buckets and sums."""
        rows = [
            [
                *(workspace_id, slug, OPERATIONS.get(path, path), PROVIDER_NAMES.get(provider, provider.lower())),
                *(model or slug, error, row.durations, row.duration_s),
                *(row.inputs, row.input_tokens, row.outputs, row.output_tokens),
            ]
            for (workspace_id, slug, path, provider, model, error), row in self._counts.items()
        ]
        self._counts.clear()
        return rows
