"""Calls reach a billing file, and the books agree: `tollgate events forward` and `tollgate events reconcile`."""

import csv
import json
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

from tests.journeys.conftest import Stage
from tests.journeys.product import COMMAND


def run(stage: Stage, *words: str) -> subprocess.CompletedProcess[str]:
    access = {"TOLLGATE_URL": stage.product.control, "TOLLGATE_API_KEY": stage.operator.api_key}
    command = [*COMMAND, "events", *words]
    environment = stage.product.environment | access
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


async def test_calls_reach_the_file_once_and_the_books_agree(stage: Stage, tmp_path: Path) -> None:
    key = await stage.key_without_limits()
    output = tmp_path / "events.jsonl"
    invoice = tmp_path / "invoice.csv"
    forward = (
        "forward",
        "--to",
        "jsonl",
        "--state",
        f"{tmp_path}/state",
        "--start",
        stage.began,
        "--output",
        str(output),
    )
    for calls in (3, 5):
        for _ in range(calls):
            await stage.ask(key)
        events = await stage.events_of(stage.name, calls if calls == 3 else 8)
        result = run(stage, *forward, "--output", str(output))
        assert result.returncode == 0, result.stderr
    forwarded = [json.loads(line) for line in output.read_text().splitlines()]
    assert [event for event in forwarded if event["externalEntityId"] == stage.name] == events
    end = datetime.fromisoformat(forwarded[-1]["timestamp"]) + timedelta(milliseconds=1)
    with invoice.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(("request_id", "output"))
        rows.writerows((event["requestId"], event["tokens"]["outputTokens"]) for event in forwarded)
    words = (
        "reconcile",
        "--start",
        stage.began,
        "--end",
        end.isoformat(),
        "--journal",
        f"{stage.product.data}/journal",
    )
    agreed = run(stage, *words, "--all-machines", "--invoice", str(invoice), "--json")
    assert agreed.returncode == 0, agreed.stdout + agreed.stderr
    counts = json.loads(agreed.stdout)["counts"]
    assert counts["events"] == counts["compared"] == counts["invoice_lines"] == len(forwarded)
    invoice.write_text(invoice.read_text().replace(f"{events[2]['requestId']},", f"{events[2]['requestId']},9"))
    differ = run(stage, *words, "--invoice", str(invoice))
    assert differ.returncode == 1
    assert events[2]["requestId"] in differ.stdout
    assert differ.stdout.count("invoice: output") == 1
