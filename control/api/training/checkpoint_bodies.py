"""Reads a trainer's report of checkpoints, within bounds. A checkpoint's location must be below its own job's.

See docs/reference/training.md#internal-api.
"""

import re
from typing import Any

import orjson

from control.api.protocol.reports import Json, items
from control.errors import InvalidFieldError
from policy.training.reports import CheckpointReport
from policy.training.statuses import FULL, LORA
from policy.training.store_keys import is_plain, is_plain_path

MAX_CHECKPOINTS = 1_100
MAX_FILES = 10_000
_MAX_LOCATION = 1_000
_MAX_TEXT = 1_000
_MAX_CONFIG_BYTES = 1_000_000
_MAX_53 = 2**53 - 1
_MAX_TIME_MS = 253_402_300_799_999
_SHA256 = re.compile(r"[0-9a-f]{64}")


async def checkpoint_reports(job_id: str, body: Json) -> list[CheckpointReport]:
    reports = await items(body, "checkpoints", lambda wire: _report(job_id, wire), MAX_CHECKPOINTS)
    if len({report.name for report in reports}) != len(reports):
        raise InvalidFieldError("checkpoints", "checkpoints must have different names")
    return reports


def _report(job_id: str, wire: Json) -> CheckpointReport:
    report = CheckpointReport.from_wire(wire)
    _check(is_plain(report.name), "name must be a plain file name")
    parts = report.location.split("/")
    is_own = parts[0] == job_id and len(report.location) <= _MAX_LOCATION
    _check(is_own and len(parts) == 3 and all(map(is_plain, parts)), "location must be <job id>/<name>/<version>")
    _check(report.checkpoint_type in (FULL, LORA), f"checkpoint_type must be {FULL} or {LORA}")
    _check(report.created_at_ms <= _MAX_TIME_MS, "created_at_ms must be a time before the year 10000")
    _check(report.size_bytes <= _MAX_53, f"size_bytes must be at most {_MAX_53}")
    _check(_is_text(report.base_model), f"base_model must be text of at most {_MAX_TEXT} characters, without NUL")
    _check(_is_json(report.lora_adapter_config), f"lora_adapter_config must have at most {_MAX_CONFIG_BYTES} bytes")
    _check_files(report)
    return report


def _check_files(report: CheckpointReport) -> None:
    files = report.files
    if files is None:
        return
    _check(1 <= len(files) <= MAX_FILES, f"files must be 1 to {MAX_FILES}")
    _check(len({file.path for file in files}) == len(files), "files must have different paths")
    for file in files:
        _check(is_plain_path(file.path), "files.path must be relative, without . and ..")
        _check(file.size_bytes <= _MAX_53, f"files.size_bytes must be at most {_MAX_53}")
        _check(_SHA256.fullmatch(file.sha256) is not None, "files.sha256 must be 64 hexadecimal digits")


def _is_text(value: str | None) -> bool:
    return value is None or (len(value) <= _MAX_TEXT and "\0" not in value)


def _is_json(value: Any) -> bool:
    return len(orjson.dumps(value)) <= _MAX_CONFIG_BYTES


def _check(is_right: bool, problem: str) -> None:
    if not is_right:
        raise ValueError(problem)
