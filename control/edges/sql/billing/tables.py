"""The tables of hourly sums. Part of the metadata of `control/edges/sql/tables.py`.

No foreign keys: a sum outlives the group and the key whose calls it adds up.
"""

from sqlalchemy import BigInteger, Column, Table, text

from control.edges.sql.tables import Id, metadata

FIGURES = (
    "calls",
    "errors",  # calls that were answered with a status of 400 or above
    "per_call_charges",  # calls that cost `per_call`
    "input_tokens",  # all input, cached and uncached
    "cached_input_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "audio_input_tokens",
    "image_input_tokens",
    "output_tokens",  # all output, with reasoning
    "reasoning_tokens",
    "audio_output_tokens",
    "image_output_tokens",
    "server_tool_calls",
)
"""The columns that are added up. Each token counts in one part: cached, written, sound, pictures or none of them."""

hourly_sums = Table(
    "hourly_sums",
    metadata,
    Column("workspace_id", Id, primary_key=True),
    Column("day_ms", BigInteger, primary_key=True, autoincrement=False),  # of the hour; all ranges begin with a day
    Column("external_entity_id", Id, primary_key=True),
    Column("api_key_prefix", Id, primary_key=True),
    Column("model_slug", Id, primary_key=True),
    Column("hour_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("group_path", Id, primary_key=True),  # ids from the root to the calling group, each with `/`
    Column("service_tier", Id, primary_key=True),  # "" if none is recorded
    # The largest of `policy.prices.CONTEXT_BOUNDS` that the input of each call exceeds; 0 if it exceeds none.
    Column("above_input_tokens", BigInteger, primary_key=True, autoincrement=False),
    *(Column(name, BigInteger, nullable=False, server_default=text("0")) for name in FIGURES),
    sqlite_with_rowid=False,
)

hourly_sum_progress = Table(
    "hourly_sum_progress",
    metadata,
    Column("workspace_id", Id, primary_key=True),
    Column("start_ms", BigInteger, nullable=False),  # the first hour that has sums
    Column("until_ms", BigInteger, nullable=False),  # events from start_ms to here are added up
)
