"""Counts what a chunk of a stream costs on canned wires. `python -m tests.proxy.budget.stream_counting` prints it.

A chunk is one frame of a Chat Completions stream, in a read of its own. Streams of two lengths and their difference
give the cost of one chunk, without that of the call around it.
"""

import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path
from subprocess import run
from types import FrameType

from tests.proxy.budget.canned_worker import CALLERS, KEY, SLUG, canned_worker
from tests.proxy.budget.counting import DEBIANS_PYTHON, ROOT, Function, missing_tool

FEW_CHUNKS, MANY_CHUNKS = 100, 600
_BODY = b'{"model":"%b","messages":[{"role":"user","content":"Tell me a story."}],"stream":true}' % SLUG.encode()
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nauthorization: Bearer %b\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (KEY.encode(), len(_BODY), _BODY)
)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_DELTA = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764000000,"model":"gpt","choices":'
    b'[{"index":0,"delta":{"content":" word%d"},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)
_LAST = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764000000,"model":"gpt","choices":[],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":8,"total_tokens":20}}\n\ndata: [DONE]\n\n'
)
ENDING = b"0\r\n\r\n"


def reads(chunks: int) -> list[bytes]:
    """A stream of `chunks` deltas, as its upstream's connection receives it."""
    frames = [*(_DELTA % number for number in range(chunks)), _LAST]
    return [_HEAD, *(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames), ENDING]


def calls_by_function() -> dict[Function, float]:
    """Python calls per chunk, of the event loop's thread."""
    few, many = _calls_of(FEW_CHUNKS), _calls_of(MANY_CHUNKS)
    per_chunk = CALLERS * (MANY_CHUNKS - FEW_CHUNKS)
    return {function: (many[function] - few[function]) / per_chunk for function in many}


def _calls_of(chunks: int) -> Counter[Function]:
    counted: Counter[Function] = Counter()
    root = f"{ROOT}/"

    def count(frame: FrameType, event: str, _arg: object) -> None:
        name = frame.f_code.co_filename.removeprefix(root)
        if event == "call" and not name.startswith("tests/"):
            counted[name, frame.f_code.co_qualname] += 1

    with canned_worker(*reads(chunks)) as (runner, worker):
        runner.run(worker.serve(2, REQUEST, ENDING))
        sys.setprofile(count)
        try:
            runner.run(worker.serve(1, REQUEST, ENDING))
        finally:
            sys.setprofile(None)
    return counted


def instructions() -> float:
    """User-space instructions per chunk, of all threads, canned wires included."""
    return (_instructions_of(MANY_CHUNKS) - _instructions_of(FEW_CHUNKS)) / (CALLERS * (MANY_CHUNKS - FEW_CHUNKS))


def _instructions_of(chunks: int) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        argv = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={scratch}/out", f"--log-file={scratch}/log"]
        argv += [str(DEBIANS_PYTHON), "-m", "tests.proxy.budget.stream_counting", str(chunks)]
        packages = f"{ROOT}:{sysconfig.get_path('purelib')}"
        env = {"PYTHONPATH": packages, "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"}
        run(argv, check=True, cwd=ROOT, env=env, timeout=300)
        line = next(line for line in Path(scratch, "out").read_text().splitlines() if line.startswith("totals:"))
    return int(line.split()[1])


def main(arguments: list[str]) -> None:
    """With a number: only stream that many chunks, for `instructions`."""
    if arguments:
        with canned_worker(*reads(int(arguments[0]))) as (runner, worker):
            runner.run(worker.serve(1, REQUEST, ENDING))
        return
    print(report(calls_by_function()))
    print(missing_tool() or f"{instructions():9,.0f}  instructions per chunk")


def report(calls: dict[Function, float]) -> str:
    """The calls by function, a line each, and their sum."""
    lines = [f"{count:9.2f}  {path}  {name}" for (path, name), count in sorted(calls.items()) if count >= 0.01]
    return "\n".join([*lines, f"{sum(calls.values()):9.2f}  Python calls per chunk"])


if __name__ == "__main__":
    main(sys.argv[1:])
