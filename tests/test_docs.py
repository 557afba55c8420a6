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
from runtime.setting_names import NAMES

ROOT = Path(__file__).resolve().parent.parent
SETTING = re.compile(r"\bTOLLGATE_[A-Z_]+[A-Z]\b")


def test_setting_names_lists_every_setting_that_the_code_reads() -> None:
    sources = [path for plane in ("proxy", "control", "launcher") for path in (ROOT / plane).rglob("*.py")]
    read = {name for path in sources for name in SETTING.findall(path.read_text())}
    assert read == NAMES, "add it to runtime/setting_names.py, or take it out there"


def test_documented_webhook_receiver_verifies_and_deduplicates() -> None:
    (code,) = re.findall("```python\n(.*?)```", (ROOT / "docs/webhooks.md").read_text(), re.DOTALL)
    receiver: dict[str, Any] = {}
    exec(code, receiver)
    secret, told = new_secret(), {"type": EVENT_TYPE, "data": {"events": [{"idempotencyKey": "1"}]}}
    body, seen = json.dumps(told).encode(), set[str]()
    headers = signed_headers("msg_1", body, time.time_ns() // 1_000_000, [secret])
    assert receiver["take"](headers, body, secret, seen) == [{"idempotencyKey": "1"}]
    assert receiver["take"](headers, body, secret, seen) == []
    with pytest.raises(WebhookVerificationError):
        receiver["take"](headers, body + b" ", secret, seen)
