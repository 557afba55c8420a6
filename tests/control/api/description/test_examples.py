"""Each example of the OpenAPI document is sent to a control plane, which answers as the document says.

See docs/reference/management-api.md#description.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.control.api.description.recorded import FILE, as_documented, record, settings
from tests.control.api.description.schemas import Described, shape
from tests.control.plane import running_plane

Json = dict[str, Any]
AGAIN = "run: python -m tests.control.api.description.recorded"
NEVER_SUCCEED = {
    *("getDeploymentConfig", "stopReplica", "signSshCertificate", "updateTrainingCapacity"),
    *("pausePromotion", "resumePromotion", "cancelPromotion", "forceCancelPromotion", "forceRollForwardPromotion"),
    *("deleteDevelopmentDeployment", "deleteProductionDeployment"),
}


@pytest.mark.timeout(120)
async def test_examples_are_what_a_control_plane_takes_and_answers(tmp_path: Path) -> None:
    async with running_plane(f"sqlite+aiosqlite:///{tmp_path}/control.db", **settings(tmp_path)) as plane:
        described = Described((await plane.get("/v1/openapi.json")).ok())
        answers = await record(plane)
    fresh = as_documented(answers)
    stored = json.loads(FILE.read_text())
    assert fresh.keys() == stored.keys(), AGAIN
    for id, example in fresh.items():
        assert example.get("request") == stored[id].get("request"), (id, AGAIN)
        assert shape(example) == shape(stored[id]), (id, AGAIN)
    for operation in described.operations:
        id = operation["operationId"]
        success = operation["responses"]["200"]["content"]["application/json"]
        if id in NEVER_SUCCEED:
            assert "example" not in success, id
            continue
        assert success["example"] == stored[id]["answer"], id
        assert described.violations(success["schema"], success["example"]) == [], id
        assert described.violations(success["schema"], answers[id]["answer"]) == [], id
        if "requestBody" in operation:
            body = operation["requestBody"]["content"]["application/json"]
            assert body["example"] == stored[id]["request"], id
            assert described.violations(body["schema"], body["example"]) == [], id


def test_examples_are_short_and_hold_no_secret_of_the_run() -> None:
    text = FILE.read_text()
    assert "127.0.0.1" not in text
    for id, example in json.loads(text).items():
        assert len(json.dumps(example)) < 8000, id
