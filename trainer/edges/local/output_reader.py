"""Reads what a runner wrote into `output.log`, whole lines at a time.

See docs/reference/training.md#output.
"""

from pathlib import Path

from trainer.backend import OutputChunk
from trainer.runner.output_log import FILE_NAME, STDERR

CHUNK_BYTES = 524_288
"""Holds the longest line that a runner writes."""
MAX_LINES = 1000


def read_output(control: Path, offset: int, has_ended: bool) -> OutputChunk:
    """The lines from `offset` on. `has_ended`: asked before this call; the runner writes no more. Blocks."""
    try:
        with open(control / FILE_NAME, "rb") as file:
            file.seek(offset)
            data = file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return OutputChunk((), offset, has_ended)
    is_last = len(data) < CHUNK_BYTES
    raw = data.split(b"\n")
    rest = raw.pop()
    lines = raw[:MAX_LINES]
    size = sum(map(len, lines)) + len(lines)
    if has_ended and is_last and len(lines) == len(raw):
        # A runner that was killed may have left a line without an end.
        return OutputChunk(_parsed([*lines, rest]), offset + len(data), True)
    if not lines and not is_last:
        size = len(data)  # no line of a runner's is as long: somebody else wrote this
    return OutputChunk(_parsed(lines), offset + size, False)


def _parsed(lines: list[bytes]) -> list[tuple[int, bool, str]]:
    """Lines that are none of a runner's are skipped."""
    records = []
    for line in lines:
        time_ns, _, rest = line.partition(b" ")
        stream, _, text = rest.partition(b" ")
        if time_ns.isdigit() and len(time_ns) <= 19 and stream in (b"1", b"2"):
            records.append((int(time_ns), int(stream) == STDERR, text.decode(errors="replace")))
    return records
