"""The documents' code runs, and the list of setting names matches the code.

Paths: tests/test_source_tree.py. Links and citations: tests/test_citations.py.
"""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import WebhookVerificationError

from control.resources.webhook_messages import signed_headers
from control.resources.webhooks import new_secret
from policy.billing import EVENT_TYPE
from policy.endpoints import PROVIDERS
from proxy.async_requests.deliveries import ResultBody, SignedHeaders
from proxy.async_requests.requests import Delivery, DeploymentRef, Succeeded
from proxy.async_requests.states import Status
from runtime.setting_names import NAMES

ROOT = Path(__file__).resolve().parent.parent
SETTING = re.compile(r"\bTOLLGATE_[A-Z_]+[A-Z]\b")


def test_setting_names_lists_every_setting_that_the_code_reads() -> None:
    programs = ("proxy", "control", "launcher", "commands", "trainer")
    sources = [path for program in programs for path in (ROOT / program).rglob("*.py")]
    read = {name for path in sources for name in SETTING.findall(path.read_text())}
    read |= {provider.base_url.setting for provider in PROVIDERS.values() if provider.base_url is not None}
    assert read == NAMES, "add it to runtime/setting_names.py, or take it out there"


DEPLOYMENT = DeploymentRef("ws_1", "mdl_1", "dep_1")
HOOK = "https://hooks.example.com/"
RESULT = Delivery(DEPLOYMENT, "req_1", HOOK, 1, "w", Status.SUCCEEDED, 1_795_000_000_000, 0, (), Succeeded(14, 1))


def test_documented_webhook_receiver_verifies_and_deduplicates() -> None:
    (code,) = re.findall("```python\n(.*?)```", (ROOT / "docs/webhooks.md").read_text(), re.DOTALL)
    receiver: dict[str, Any] = {}
    exec(code, receiver)
    secret = new_secret()
    message = {"type": EVENT_TYPE, "data": {"events": [{"idempotencyKey": "1"}]}}
    body = json.dumps(message).encode()
    keys = set[str]()
    headers = signed_headers("msg_1", body, time.time_ns() // 1_000_000, [secret])
    assert receiver["take"](headers, body, secret, keys) == [{"idempotencyKey": "1"}]
    assert receiver["take"](headers, body, secret, keys) == []
    with pytest.raises(WebhookVerificationError):
        receiver["take"](headers, body + b" ", secret, keys)


def test_documented_receiver_of_results_verifies_and_deduplicates() -> None:
    text = (ROOT / "docs/reference/events-and-webhooks.md").read_text().partition("## Results of")[2]
    (code,) = re.findall("```python\n(.*?)```", text, re.DOTALL)
    receiver: dict[str, Any] = {}
    exec(code, receiver)
    secret = new_secret()
    results = dict[str, Any]()
    body = ResultBody(RESULT)
    message = b"".join((body.begin(), *body.chunk_parts(b'{"score": 0.9}'), body.end()))
    signed = SignedHeaders(RESULT.request_id, int(time.time()), [new_secret(), secret])
    signed.add(message)
    for _ in range(2):
        receiver["take"](signed.headers(), message, secret, results)
    assert [(id, result["data"]) for id, result in results.items()] == [("req_1", {"score": 0.9})]
    with pytest.raises(WebhookVerificationError):
        receiver["take"](signed.headers(), message + b" ", secret, results)


def test_documented_result_has_the_members_of_a_real_one() -> None:
    text = (ROOT / "docs/reference/events-and-webhooks.md").read_text().partition("## Results of")[2]
    example = text.partition("\n\n{")[2].partition("}\n```")[0].replace("{…}", "0")
    body = ResultBody(RESULT)
    members = json.loads(b"".join((body.begin(), *body.chunk_parts(b"0"), body.end())))
    assert list(json.loads("{" + example + "}")) == list(members)
