"""`GET /v1/gateway/traffic`: calls, errors, refusals, tokens and times to first byte, by slug and step.

See docs/reference/management-api.md#traffic.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import DECIMAL, NO_NUL, RequestV1, ResponseV1, TimeText
from control.api.protocol.times import TimeParameter
from control.long_work import beside
from control.records.times import time_text
from control.records.traffic import StepRange
from control.resources.traffic.figures import MAX_SLUGS, Chart, SlugTraffic, TrafficQuery, read_traffic
from control.resources.traffic.percentiles import percentile_ms
from control.resources.traffic.steps import Period
from policy.keys.permissions import Permission
from policy.traffic import SUMS

_NOTHING = (0,) * len(SUMS)
_PERCENTS = (50, 95, 99)


class TrafficQueryV1(RequestV1):
    """Selects a period, and perhaps one slug."""

    period: Literal["hour", "day", "month"] = "hour"
    limit: Annotated[
        int, Field(ge=1, le=MAX_SLUGS, description="Slugs with an item of their own; all others are one."), DECIMAL
    ] = MAX_SLUGS
    series: Literal["true", "false"] = Field("true", description="`false`: items have their sums alone.")
    end_time: TimeParameter | None = Field(None, description="When the period ends. Omitted: now.")
    slug: Annotated[str | None, Field(min_length=1, max_length=257, json_schema_extra=NO_NUL)] = Field(
        None, description="Only this slug, or the direct calls of the model with this id."
    )


class FirstByteV1(ResponseV1):
    """Percentiles of the time to the first byte, in milliseconds."""

    p50: float
    p95: float
    p99: float


class TrafficPointV1(ResponseV1):
    """One step. `tokens` counts cached and uncached input, and output."""

    start_time: TimeText
    calls: int
    errors: int
    refusals: int
    tokens: int
    first_byte_p50_ms: float | None


class TrafficItemV1(ResponseV1):
    """The traffic of one slug. `slug`: null for all calls that have no item of their own."""

    slug: str | None
    calls: int
    errors: int
    refusals: int
    uncached_input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    first_byte_ms: FirstByteV1 | None
    series: list[TrafficPointV1]


class TrafficResponseV1(ResponseV1):
    """The traffic of a period, busiest slugs first. Each series has all steps of the period, oldest first."""

    period: str
    start_time: TimeText
    end_time: TimeText = Field(description="The end of the last step, which may not be over yet.")
    step_s: int
    items: list[TrafficItemV1]


async def _get(request: ApiRequest) -> Encoded:
    query = request.query_as(TrafficQueryV1)
    end_ms = None if query.end_time is None else query.end_time // 1_000_000
    traffic_query = TrafficQuery(Period(query.period), end_ms, query.slug, query.limit)
    chart = await read_traffic(request.store, request.workspace_id, traffic_query)
    points = (1 + len(chart.slugs)) * len(_starts(chart.span))
    return Encoded(await beside(request.workspace_id, points, partial(_answer, chart, query)))


def _answer(chart: Chart, query: TrafficQueryV1) -> Pieces:
    starts = _starts(chart.span)
    texts = [time_text(start_ms) for start_ms in starts]
    times = dict(zip(starts[:-1], texts[:-1], strict=True)) if query.series == "true" else {}
    head = {"period": query.period, "start_time": texts[0], "end_time": texts[-1]}
    items = [_item(one, times) for one in chart.slugs]
    return encode_object({**head, "step_s": chart.span.steps.length_s, "items": Array(items)})


def _starts(span: StepRange) -> range:
    """The starts of its steps, and its end."""
    return range(span.first_ms, span.end_ms + 1, span.steps.length_ms)


def _item(traffic: SlugTraffic, times: dict[int, str]) -> Pieces:
    """`times`: the starts of the steps to show, and how they are written."""
    figures = traffic.figures()
    totals = [sum(column) for column in zip(*figures.values(), strict=True)]

    def point(time: tuple[int, str]) -> Pieces:
        start_ms, text = time
        return (orjson.dumps(_point(text, figures.get(start_ms, _NOTHING))),)

    head = {"slug": traffic.slug, **_sums(totals), "first_byte_ms": _first_byte(totals[len(SUMS) :])}
    return encode_object({**head, "series": Array(map(point, times.items()))})


def _sums(figures: Sequence[int]) -> dict[str, int]:
    return dict(zip(SUMS, figures, strict=False))


def _first_byte(buckets: Sequence[int]) -> dict[str, float | None] | None:
    return {f"p{percent}": percentile_ms(buckets, percent) for percent in _PERCENTS} if any(buckets) else None


def _point(start_time: str, figures: Sequence[int]) -> dict[str, Any]:
    calls, errors, refusals, *tokens = figures[: len(SUMS)]
    median_ms = percentile_ms(figures[len(SUMS) :], 50)
    counts = {"calls": calls, "errors": errors, "refusals": refusals, "tokens": sum(tokens)}
    return {"start_time": start_time, **counts, "first_byte_p50_ms": median_ms}


OPERATIONS = (
    Operation(
        *("GET", "/v1/gateway/traffic", _get, "Show the traffic", TrafficResponseV1),
        query=TrafficQueryV1,
        errors=(400,),
        needs=Permission.READ,
    ),
)
