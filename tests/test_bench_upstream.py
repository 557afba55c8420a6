"""The bench's upstream, as a program: it answers each request once, whatever its body's size and pieces."""

import contextlib
import http.client
import json
import shutil
import socket
from collections.abc import Iterator

import pytest

from bench.programs.compiled import build
from bench.programs.peers import CHAT, chat_body
from bench.programs.processes import PROXY_CORE, answers, start, wait_until
from runtime.child_process import free_ports

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc (Debian packages gcc and libc6-dev)")
STREAM = chat_body("mock", stream=True, ending=" [3 frames every 1 ms]").encode()
PLAIN = chat_body("mock").encode()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    (port,) = free_ports("127.0.0.1", 1)
    log = tmp_path_factory.mktemp("upstream") / "log"
    program = start("upstream", [str(build("upstream")), str(port)], PROXY_CORE, log)
    try:
        wait_until(lambda: answers(port), "the upstream")
        yield port
    finally:
        program.stop()


@pytest.fixture
def caller(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 10) as caller:
        yield caller


def request(body: bytes, fields: str = "") -> bytes:
    return f"POST {CHAT} HTTP/1.1\r\nHost: mock\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body


def answer(caller: socket.socket) -> http.client.HTTPResponse:
    read = http.client.HTTPResponse(caller)
    read.begin()
    return read


def frames(caller: socket.socket) -> list[bytes]:
    return answer(caller).read().split(b"\n\n")


def test_completion_has_text_and_usage(caller: socket.socket) -> None:
    caller.sendall(request(PLAIN))
    body = json.loads(answer(caller).read())
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 8,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_pipelined_requests_are_answered_in_order(caller: socket.socket) -> None:
    caller.sendall(request(PLAIN) * 2 + request(STREAM))
    text = b""
    while not text.endswith(b"0\r\n\r\n"):
        text += caller.recv(65536)
    kinds = [line for line in text.split(b"\r\n") if line.startswith(b"content-type")]
    assert kinds == [b"content-type: application/json"] * 2 + [b"content-type: text/event-stream"]


def test_body_of_megabytes_is_consumed_and_the_next_request_answered(caller: socket.socket) -> None:
    huge = chat_body("mock", prompt_bytes=5_000_000).encode()
    for body in (huge, PLAIN, huge):
        caller.sendall(request(body))
        assert json.loads(answer(caller).read())["object"] == "chat.completion"


def test_stream_has_the_frames_that_its_prompt_asks_for(caller: socket.socket) -> None:
    caller.sendall(request(STREAM))
    *all_frames, end = frames(caller)
    assert (len(all_frames), end) == (3 + 3, b"")
    assert b'"usage":{"prompt_tokens":12' in all_frames[-2]
    assert all_frames[-1] == b"data: [DONE]"


@pytest.mark.parametrize("spaced", [False, True])
def test_wish_to_stream_is_seen_wherever_its_body_is_cut(port: int, spaced: bool) -> None:
    body = STREAM.replace(b'"stream":true', b'"stream" : true') if spaced else STREAM
    text = request(body)
    for cut in range(len(text) - 70, len(text)):
        with socket.create_connection(("127.0.0.1", port), 10) as caller:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            caller.sendall(text[:cut])
            caller.sendall(text[cut:])
            assert len(frames(caller)) == 7, cut


def test_request_in_single_bytes_is_answered(caller: socket.socket) -> None:
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in request(STREAM):
        caller.sendall(bytes((byte,)))
    assert len(frames(caller)) == 7


def test_prompt_about_streaming_gets_no_stream(caller: socket.socket) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": '"stream":true'}], "stream": False}).encode()
    caller.sendall(request(body))
    assert json.loads(answer(caller).read())["object"] == "chat.completion"


@pytest.mark.parametrize("unserved", [request(PLAIN, "Transfer-Encoding: chunked\r\n"), b"x" * 9000])
def test_what_is_not_served_ends_the_connection(caller: socket.socket, unserved: bytes) -> None:
    caller.sendall(unserved)
    with contextlib.suppress(ConnectionResetError):  # it closed before it read everything
        assert caller.recv(100) == b""


def test_request_behind_a_stream_breaks_the_stream_off(caller: socket.socket) -> None:
    caller.sendall(request(STREAM) * 2)
    with pytest.raises(http.client.IncompleteRead):
        answer(caller).read()
