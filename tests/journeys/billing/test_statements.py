"""Calls reach the bill: prices from a file, then report and statements, equal to the events to the last digit."""

import csv
import io
import subprocess
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from policy.billing import Tokens
from tests.journeys.conftest import Stage
from tests.journeys.product import COMMAND
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.upstream.questions import Question, answer_question

CALLS = (
    Tokens(input=1_000_001, output=7, cached_input=1),
    Tokens(input=30, output=0, cached_input=0),
    Tokens(input=12_345, output=6_789, cached_input=345),
)
INPUT, CACHED, OUTPUT, PER_CALL = map(Decimal, ("0.15", "0.075", "0.333333333333", "0.000001"))
SUMS = ("calls", "input_tokens", "cached_input_tokens", "output_tokens")


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    """Reports the tokens that the call asks for."""
    async with ScriptedUpstream(default=answer_question, port=own_port()) as upstream:
        yield upstream


def run(stage: Stage, *words: str) -> str:
    access = {"TOLLGATE_URL": stage.product.control, "TOLLGATE_API_KEY": stage.operator.api_key}
    environment = stage.product.environment | access
    result = subprocess.run(
        [*COMMAND, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def added_up(events: list[Any]) -> dict[str, int]:
    token_counts = [event["tokens"] for event in events]
    names = {"input_tokens": "inputTokens", "cached_input_tokens": "cachedInputTokens", "output_tokens": "outputTokens"}
    return {"calls": len(events), **{name: sum(one[key] for one in token_counts) for name, key in names.items()}}


def cost_of(sums: dict[str, int]) -> Decimal:
    cached = sums["cached_input_tokens"]
    tokens = INPUT * (sums["input_tokens"] - cached) + CACHED * cached + OUTPUT * sums["output_tokens"]
    return tokens / 1_000_000 + PER_CALL * sums["calls"]


async def test_calls_reach_the_statement_to_the_last_token_and_cent(stage: Stage, tmp_path: Path) -> None:
    month = stage.began[:7]
    prices = tmp_path / "prices.csv"
    header = "slug,valid_from,currency,input_per_million,cached_input_per_million,output_per_million,per_call"
    prices.write_text(f"{header}\n{stage.slug},{month}-01,EUR,{INPUT},{CACHED},{OUTPUT},{PER_CALL}\n")
    run(stage, "prices", "set", "--file", str(prices))
    key = await stage.key_without_limits()
    for tokens in CALLS:
        await stage.ask(key, messages=[{"role": "user", "content": Question(tokens, 1, 0).text()}])
    sums = added_up(await stage.events_of(stage.name, len(CALLS)))
    assert sums["input_tokens"] == sum(tokens.input for tokens in CALLS)
    cost = cost_of(sums)
    words = ("usage", "report", "--start", stage.began, "--entity", stage.name, "--format", "csv")
    [reported] = rows(run(stage, *words, "--group-by", "slug"))
    assert {name: int(reported[name]) for name in SUMS} == sums
    assert (reported["currency"], Decimal(reported["cost"]), reported["unpriced_calls"]) == ("EUR", cost, "0")
    statement = ("usage", "statement", "--month", month, "--draft")
    run(stage, *statement, "--all", "--output", str(tmp_path / "all"))
    [index_row] = [row for row in rows((tmp_path / "all/index.csv").read_text()) if row["entity"] == stage.name]
    line, total = rows((tmp_path / "all" / index_row["file"]).read_text())
    assert int(line["uncached_input_tokens"]) + int(line["cached_input_tokens"]) == sums["input_tokens"]
    assert (int(line["calls"]), int(line["output_tokens"])) == (sums["calls"], sums["output_tokens"])
    assert (Decimal(line["amount"]), line["status"], total["slug"]) == (cost, "draft", "TOTAL")
    assert total["amount"] == str(cost.quantize(Decimal("0.01")))
    run(stage, *statement, "--entity", stage.name, "--format", "html", "--output", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert f"Total: EUR {total['amount']}" in page
    assert f"exactly {line['amount']}" in page
    assert (index_row["total"], index_row["calls"]) == (total["amount"], str(sums["calls"]))
