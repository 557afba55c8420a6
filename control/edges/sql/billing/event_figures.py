"""The figures that an event adds to a sum, as expressions over its columns: `policy.prices.cost_figures` in SQL.

Each token is counted in one part, because a sum cannot be taken apart later. The events are called `e`.
"""

from collections.abc import Iterable, Mapping

_LEAST = {"sqlite": "min", "postgresql": "least"}
_GREATEST = {"sqlite": "max", "postgresql": "greatest"}

SERVICE_TIER = "coalesce(e.service_tier, '')"
"""The tier that the provider reported; "" if none is recorded."""
EVENT_GROUP = "groups.id = e.group_id AND e.group_path IS NULL"
"""The group to join for `EVENT_PATH`."""
EVENT_PATH = "coalesce(e.group_path, groups.path, e.group_id || '/')"
"""The path that the event records. Older events record none: that of their group, or its id if it is deleted."""


def figures_of(dialect: str) -> Mapping[str, str]:
    """The expression that adds up each figure of the events, by the column of `hourly_sums`.

    Few events have figures beside their tokens: those of the others are null, and cost one comparison.
    """
    least, greatest = _LEAST[dialect], _GREATEST[dialect]
    cached = f"{least}(e.cached_input_tokens, e.input_tokens)"
    image = f"{least}({_figure('image_input_tokens')}, e.input_tokens)"
    audio = f"{least}({_figure('audio_input_tokens')}, e.input_tokens - {image})"
    writes = f"{least}({_figure('cache_write_tokens')}, e.input_tokens - {cached})"
    beyond_text = f"{greatest}(0, {cached} + {writes} - (e.input_tokens - {image} - {audio}))"
    audio_output = f"{least}({_figure('audio_output_tokens')}, e.output_tokens)"
    parts = {
        "cache_write_tokens": writes,
        "cache_write_1h_tokens": f"{least}(e.cache_write_1h_tokens, {writes})",
        "audio_input_tokens": f"{audio} - {greatest}(0, {beyond_text} - {image})",
        "image_input_tokens": f"{greatest}(0, {image} - {beyond_text})",
        "reasoning_tokens": "e.reasoning_tokens",
        "audio_output_tokens": audio_output,
        "image_output_tokens": f"{least}(e.image_output_tokens, e.output_tokens - {audio_output})",
        "server_tool_calls": "e.server_tool_calls",
    }
    return {
        "calls": "count(*)",
        "errors": "sum(CASE WHEN e.status >= 400 THEN 1 ELSE 0 END)",
        "per_call_charges": "sum(e.charged)",
        "input_tokens": "sum(e.input_tokens)",
        "output_tokens": "sum(e.output_tokens)",
        "cached_input_tokens": f"sum({cached})",
        **{name: f"coalesce(sum(CASE WHEN e.{name} > 0 THEN {part} END), 0)" for name, part in parts.items()},
    }


def context_class(bounds: Iterable[int]) -> str:
    """The largest of these bounds that the event's input exceeds; 0 if it exceeds none."""
    classes = " ".join(f"WHEN e.input_tokens > {bound} THEN {bound}" for bound in sorted({*bounds}, reverse=True))
    return f"(CASE {classes} ELSE 0 END)" if classes else "0"


def _figure(name: str) -> str:
    return f"coalesce(e.{name}, 0)"
