"""The documents, held to the tree: what they name is there, and every link leads somewhere."""

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
DOCUMENTS = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
FILE = re.compile(r"`((?:policy|proxy|control|tests|bench|docs)/[\w./]+\.\w+)`")
SETTING = re.compile(r"\bTOLLGATE_[A-Z_]+[A-Z]\b")
READ = re.compile(r'read\.\w+\("([A-Z_]+)"')
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_is_there(document: Path) -> None:
    text = document.read_text()
    missing = [name for name in FILE.findall(text) if not (ROOT / name).exists()]
    missing += [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert not missing


def test_the_list_of_setting_names_is_what_the_code_reads() -> None:
    sources = [path for plane in ("proxy", "control") for path in (ROOT / plane).rglob("*.py")]
    read = {name for path in sources for name in SETTING.findall(path.read_text())}
    read |= {f"TOLLGATE_{name}" for name in READ.findall((ROOT / "proxy/settings.py").read_text())}
    assert read == NAMES, "add it to runtime/setting_names.py, or take it out there"


def test_the_receiver_in_the_document_verifies_and_counts_once() -> None:
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


def test_there_are_documents() -> None:
    assert {"README.md", "CHANGELOG.md", "docs/architecture.md", "docs/operating.md"} <= {
        str(document.relative_to(ROOT)) for document in DOCUMENTS
    }
