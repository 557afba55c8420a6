"""A checkpoint's kind: full or LoRA, and of which model, by its `adapter_config.json`. The file is the job's.

See docs/reference/training.md#checkpoints.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from policy.training.statuses import FULL, LORA

ADAPTER_CONFIG = "adapter_config.json"
MAX_CONFIG_BYTES = 256 * 1024
MAX_BASE_MODEL_CHARS = 1000
_MAX_LEVELS = 100
_MAX_INT = 2**63


@dataclass(frozen=True, slots=True)
class Description:
    checkpoint_type: str = FULL
    base_model: str | None = None
    lora_adapter_config: Mapping[str, Any] | None = None


def described(adapter_config: bytes | None) -> Description:
    """`adapter_config`: the content of the file; None if there is none. What is no JSON object describes nothing."""
    if adapter_config is None:
        return Description()
    config = _json_object(adapter_config)
    base_model = (config or {}).get("base_model_name_or_path")
    is_name = isinstance(base_model, str) and base_model.isprintable() and len(base_model) <= MAX_BASE_MODEL_CHARS
    return Description(LORA, base_model if is_name and base_model else None, config)


def _json_object(content: bytes) -> dict[str, Any] | None:
    """Parse what every parser and database takes: no NaN, no half of a surrogate pair, bounded numbers and nesting."""
    if len(content) > MAX_CONFIG_BYTES:
        return None
    try:
        value = json.loads(content, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _levels(value) <= _MAX_LEVELS else None


def _levels(value: Any) -> int:
    """Return how deeply objects and arrays are nested."""
    count = 0
    level = [value]
    while level := [inner for inner in level if isinstance(inner, (dict, list))]:
        count += 1
        level = [part for inner in level for part in (inner.values() if isinstance(inner, dict) else inner)]
    return count


def _whole(text: str) -> int | float:
    value = int(text)
    return value if -_MAX_INT <= value < _MAX_INT else _finite(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value
