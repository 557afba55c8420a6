"""Events as numbered Parquet files. Each appears complete, by a rename, and never changes.

A part holds the position after its last event. A forwarder that died before it recorded a part finds it, and goes on
after it: a reader that had loaded the part misses nothing and sees nothing twice.
"""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from commands.records.billing_events import FURTHER_FIGURES, Event, Position
from commands.records.receiver import ReceiverError, Recovery, RefusedEvent

_AFTER = b"tollgate.after"
_KEY = "idempotency_key"
_UNFINISHED = ".unfinished"


class ParquetParts:
    """A directory of parts. The mark is the number of parts that were recorded. `details`: they have columns."""

    remembers_s: float | None = None

    def __init__(self, directory: Path, batch_events: int, *, details: bool = False) -> None:
        self.batch_events = batch_events
        self._details = details
        self._directory = directory
        self._parts = 0
        self._arrow, self._parquet = _pyarrow()

    def recover(self, mark: int | None) -> Recovery | None:
        try:
            if mark is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                if any(self._directory.glob("part-*")):
                    raise ReceiverError(f"{self._directory}: has parts of another forwarder. Name another directory")
            for path in self._directory.glob(f"*{_UNFINISHED}"):
                path.unlink()
            self._parts = mark or 0
            return self._unrecorded()
        except OSError as error:
            raise ReceiverError(f"{self._directory}: {error.strerror}. Check the path") from None

    async def deliver(self, events: Sequence[Event]) -> tuple[list[RefusedEvent], int]:
        path = self._path(self._parts + 1)
        try:
            self._write(path, events)
        except OSError as error:
            raise ReceiverError(f"{path}: {error.strerror}. Nothing is lost; run it again once it is mended") from None
        self._parts += 1
        return [], self._parts

    async def close(self) -> None:
        """Do nothing: no file stays open between parts."""

    def _unrecorded(self) -> Recovery | None:
        """The parts that the state lacks: one after a crash, more if the state was restored from a backup."""
        after = None
        keys = []
        while (path := self._path(self._parts + 1)).exists():
            try:
                after = json.loads(self._parquet.read_schema(path).metadata[_AFTER])
                keys += self._parquet.read_table(path, columns=[_KEY]).column(_KEY).to_pylist()
            except (self._arrow.ArrowException, KeyError, TypeError, ValueError) as error:
                raise ReceiverError(f"{path}: no part of this forwarder ({error}). Move it away") from None
            self._parts += 1
        return None if after is None else Recovery(Position(*after), tuple(keys), self._parts)

    def _write(self, path: Path, events: Sequence[Event]) -> None:
        unfinished = path.with_name(path.name + _UNFINISHED)
        metadata = {_AFTER: json.dumps(events[-1].position).encode()}
        table = self._arrow.Table.from_pylist([_row(event) for event in events], schema=self.schema())
        with unfinished.open("wb") as file:
            self._parquet.write_table(table.replace_schema_metadata(metadata), file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        directory = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def schema(self) -> Any:
        """The columns of every part."""
        arrow = self._arrow
        texts = ("request_id", "model_slug", "external_entity_id", "api_key_prefix")
        figures = ("input_tokens", "cached_input_tokens", "output_tokens")
        fields = [(_KEY, arrow.string()), ("timestamp", arrow.timestamp("ms", tz="UTC"))]
        fields += [(name, arrow.string()) for name in texts]
        fields += [(name, arrow.int64()) for name in figures]
        if self._details:
            fields += [(name, arrow.int64()) for name in ("status", *FURTHER_FIGURES)]
            fields += [(name, arrow.string()) for name in ("service_tier", "source")]
        return arrow.schema(fields)

    def _path(self, number: int) -> Path:
        return self._directory / f"part-{number:08d}.parquet"


def _row(event: Event) -> dict[str, Any]:
    return {
        _KEY: event.key,
        "timestamp": datetime.fromisoformat(event.timestamp).astimezone(UTC),
        "request_id": event.listed.get("requestId"),
        "model_slug": event.slug,
        "external_entity_id": event.entity,
        "api_key_prefix": event.listed.get("apiKeyPrefix"),
        "input_tokens": event.input_tokens,
        "cached_input_tokens": event.cached_input_tokens,
        "output_tokens": event.output_tokens,
        **event.details,
    }


def _pyarrow() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`: an extra, because it has 40 MB."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ReceiverError("Parquet needs pyarrow, which is not installed: pip install 'tollgate[parquet]'") from None
    return arrow, parquet
