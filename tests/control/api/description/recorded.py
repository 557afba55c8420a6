"""The examples of the OpenAPI document: the calls of the story, and what a control plane answered.

`python -m tests.control.api.description.recorded` writes them again.
"""

import asyncio
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from control.api.description.names import names_by_route
from control.records.times import time_text
from policy.training.caches import CacheEntry, CacheSummary
from policy.training.reports import CheckpointFile, CheckpointReport, MetricPoint, OutputBatch, OutputLine
from policy.training.statuses import Phase
from policy.training.store_keys import location
from tests.control import training
from tests.control.api.description.story import (
    CALLS_CAME,
    CLEARING_UP,
    JOB_RUNS,
    JOB_WAITS,
    MODELS,
    PLACES,
    PREPARING,
    SETTING_UP,
    Call,
)
from tests.control.api.test_requests import post as post_requests
from tests.control.api.test_requests import row as request_row
from tests.control.api.test_traffic import post as post_traffic
from tests.control.api.test_traffic import row as traffic_row
from tests.control.api.test_webhooks import QUIET
from tests.control.billing import clock_ms, event, ingest_and_reader
from tests.control.plane import ControlPlane, running_plane
from tests.control.trainer import Trainer, report, stored
from tests.s3_client import S3

Json = dict[str, Any]
FILE = Path(__file__).parents[4] / "control/api/description/examples.json"


def settings(directory: Path) -> Json:
    """The settings of the control plane that the story is told to."""
    return QUIET | {
        "event_holdback_s": 0.0,
        "checkpoint_store": f"file://{directory}/store",
        "egress_allow": f"{QUIET['egress_allow']},login.example.invalid=127.0.0.1:9",
    }


async def record(plane: ControlPlane) -> dict[str, Json]:
    """Tell the whole story to a control plane. Returns what it was sent and what it answered, by operation."""
    teller = _Teller(plane)
    await teller.tell(SETTING_UP)
    await _let_calls_come(plane, teller)
    await teller.tell(CALLS_CAME)
    await teller.tell(MODELS)
    await training.enable(plane)
    await teller.tell(PREPARING)
    client = S3(plane.client.session, teller.answers["getUploadCredentials"])
    assert (await client.put(b"an archive")).status == 200
    await teller.tell(JOB_WAITS)
    await _let_the_job_run(plane, teller)
    await teller.tell(JOB_RUNS)
    await teller.tell(CLEARING_UP)
    return teller.examples


async def _let_calls_come(plane: ControlPlane, teller: "_Teller") -> None:
    now_ms = await clock_ms(plane.store)
    prefix = teller.value("$createGroupKey.prefix")
    billed = event(
        1,
        now_ms - 5,
        workspace_id=plane.workspace_id,
        group_id=teller.value("$createGroup.id"),
        external_entity_id="customer-42",
        api_key_prefix=prefix,
    )
    await ingest_and_reader(plane.store, 0.0)[0].commit([billed])
    names = {"external_entity_id": "customer-42", "api_key_prefix": prefix, "request_id": "checkout-7f3a"}
    listed = request_row(plane, now_ms, **names)
    (await post_requests(plane, listed)).ok()
    (await post_traffic(plane, 1, traffic_row(plane, now_ms // 60_000 * 60_000, calls=3, tokens=(500, 120, 0)))).ok()
    teller.answers["now"] = {"start": time_text(now_ms - 3_600_000), "end": time_text(now_ms)}


_MOMENT_MS = 1_790_000_000_000


async def _let_the_job_run(plane: ControlPlane, teller: "_Teller") -> None:
    job_id = teller.value("$createTrainingJob.training_job.id")
    trainer = Trainer(plane)
    await trainer.claim(job_id)
    attempt = (await stored(plane.store, job_id)).attempt
    await trainer.sync(report(Phase.RUNNING, id=job_id, attempt=attempt))
    point = MetricPoint("loss", _MOMENT_MS, 1, 0.25)
    line = OutputLine(_MOMENT_MS * 1_000_000, "INFO", "step 1, loss 0.25")
    (await trainer.try_output(OutputBatch(attempt, 0, 0, 18, (line,), (point,)), job_id)).ok()
    file = CheckpointFile("model.safetensors", 3, hashlib.sha256(b"abc").hexdigest())
    at = location(job_id, "checkpoint-100", "v1")
    checkpoint = CheckpointReport("checkpoint-100", at, _MOMENT_MS, "FULL", None, None, 3, files=(file,))
    body = {"attempt": attempt, "checkpoints": [checkpoint.to_wire()]}
    (await trainer.post(f"jobs/{job_id}/checkpoints", body)).ok()
    entry = CacheEntry("hub/model.safetensors", 3, _MOMENT_MS, "file", "-rw-r--r--")
    project_id = teller.value("$createTrainingProject.training_project.id")
    (await trainer.post("caches", CacheSummary(project_id, _MOMENT_MS, (entry,)).to_wire())).ok()


class _Teller:
    """Sends calls, one after the other, and keeps what was answered."""

    def __init__(self, plane: ControlPlane) -> None:
        self.examples: dict[str, Json] = {}
        self.answers: Json = {}
        self._plane = plane
        self._routes = {names.id: route.split(" ") for route, names in names_by_route().items()}

    async def tell(self, calls: Sequence[Call]) -> None:
        for call in calls:
            await self._tell(call)

    async def _tell(self, call: Call) -> None:
        method, template = self._routes[call.id]
        places = re.findall(r"{(\w+)}", template)
        path = {name: self.value(call.path.get(name, PLACES[name])) for name in places}
        query = {name: self.value(text) for name, text in call.query.items()}
        body = None if call.body is None else self._filled(call.body)
        answer = await self._plane.call(method, template.format(**path), body, params=query)
        assert answer.status == 200, (call.id, answer.status, answer.body)
        if not call.is_shown:
            return
        self.answers[call.id] = answer.body
        assert call.id not in self.examples, call.id
        request = {} if body is None else {"request": body}
        self.examples[call.id] = {"path": path, "query": query, **request, "answer": answer.body}

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._filled(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._filled(item) for item in value]
        return self.value(value) if isinstance(value, str) else value

    def value(self, text: str) -> str:
        """The text itself, or what it says of an earlier answer."""
        if not text.startswith("$"):
            return text
        value: Any = self.answers
        for name in text[1:].split("."):
            value = value[int(name)] if isinstance(value, list) else value[name]
        assert isinstance(value, str), text
        return value


TIME = "2026-01-31T12:00:00.000Z"
_ULID = "[0-9A-HJKMNP-TV-Z]{26}"


def as_documented(examples: Mapping[str, Json]) -> dict[str, Json]:
    """The same with ids, times, secrets and addresses that are the same each time."""
    numbers: dict[str, int] = {}

    def numbered(form: Callable[[re.Match[str], int], str]) -> Callable[[re.Match[str]], str]:
        return lambda match: form(match, numbers.setdefault(match[0], len(numbers) + 1))

    text = json.dumps(examples, ensure_ascii=False)
    for pattern, form in _FORMS:
        text = re.sub(pattern, numbered(form), text)
    result: dict[str, Json] = json.loads(text)
    return {id: _without_empty(example) for id, example in sorted(result.items())}


def _without_empty(example: Json) -> Json:
    """Leave out parameters where there are none, and the body of a request that has none."""
    return {name: value for name, value in example.items() if value or (name != "path" and name != "query")}


_FORMS: tuple[tuple[str, Callable[[re.Match[str], int], str]], ...] = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", lambda match, number: TIME),
    (rf"\b([a-z]+_)?{_ULID}\b", lambda match, number: f"{match[1] or ''}01KGA0{number:020d}"),
    (r"\btg_\w{12}\.[\w-]{32}", lambda match, number: "tg_9fKq2LmN0pXz.the-secret-is-in-no-other-answer"),
    (r"\btg_(?!9fKq2LmN0pXz)[A-Za-z0-9]{12}\b", lambda match, number: f"tg_9fKq2LmN{number:04d}"),
    (r"whsec_[\w+/=]+", lambda match, number: "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
    (r"\bsession_[0-9a-f]{32}\b", lambda match, number: f"session_{number:032x}"),
    (r"\b[0-9A-F]{4}-[0-9A-F]{4}\b", lambda match, number: "7D7A-1A81"),
    (r"\bTG[0-9A-F]{18}\b", lambda match, number: "TG8CD98092085A0EB295"),
    (r'(?<="aws_secret_access_key": ")[^"]+', lambda match, number: "a-secret-that-ends-within-the-hour"),
    (r"[\w-]{60,}", lambda match, number: "a-long-text-that-tollgate-has-signed"),
    (r"\b1[78]\d{17}\b", lambda match, number: "1790000000000000000"),
    (r"https?://127\.0\.0\.1:\d+", lambda match, number: "https://tollgate.example"),
)


async def _main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with running_plane(f"sqlite+aiosqlite:///{directory}/control.db", **settings(Path(directory))) as plane:
            examples = as_documented(await record(plane))
    FILE.write_text(json.dumps(examples, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(_main())
