"""Counts what a chunk of a stream costs on canned wires. `python -m tests.proxy.budget.stream_counting` prints it.

A chunk is one frame of a Chat Completions stream, in a read of its own. Streams of two lengths and their difference
give the cost of one chunk, without that of the call around it.
"""

from collections import Counter

from tests.proxy.budget.canned_worker import CALLERS, KEY, SLUG, canned_worker
from tests.proxy.budget.counting import Counts, Function, Spent, counting_bytecodes, counting_calls

FEW_CHUNKS = 100
MANY_CHUNKS = 600
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


def spent_per_chunk() -> Spent:
    """Count what a chunk takes of the event loop's thread."""
    few = _counts_of(FEW_CHUNKS)
    many = _counts_of(MANY_CHUNKS)
    more = Counts(
        calls=_difference(many.calls, few.calls),
        c_calls=_difference(many.c_calls, few.c_calls),
        bytecodes=_difference(many.bytecodes, few.bytecodes),
    )
    return more.per(CALLERS * (MANY_CHUNKS - FEW_CHUNKS))


def _difference(many: Counter[Function], few: Counter[Function]) -> Counter[Function]:
    """The counts of the chunks by which two streams differ. What only one of them did may be below zero."""
    many.subtract(few)
    return many


def _counts_of(chunks: int) -> Counts:
    counts = Counts()
    with canned_worker(*reads(chunks)) as (runner, worker):
        runner.run(worker.serve(2, REQUEST, ENDING))
        for counting in (counting_calls, counting_bytecodes):
            with counting(counts):
                runner.run(worker.serve(1, REQUEST, ENDING))
    return counts


def report(spent: Spent) -> str:
    """List the cost of a chunk by function, a line each, and the sums."""
    lines = [f"{count:9.2f}  {path}  {name}" for (path, name), count in sorted(spent.calls.items()) if count >= 0.01]
    sums = [sum(counted.values()) for counted in (spent.calls, spent.c_calls, spent.bytecodes)]
    return "\n".join([*lines, "{:9.2f} Python calls, {:.2f} C calls, {:.1f} bytecodes per chunk".format(*sums)])


if __name__ == "__main__":
    print(report(spent_per_chunk()))
