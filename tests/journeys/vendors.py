"""The vendors in one server, each in its own dialect and each with its own credential, in a thread of its own.

A product is started with their addresses, so they live as long as it does and longer than one test's event loop. What
a call asks for chooses the answer: a tool where it brings one, a failure where the text says so.
"""

import asyncio
import base64
import json
import threading
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

CREDENTIAL = "sk-vendor-credential-9f2c"
ACCESS_TOKEN = "ya29.minted-for-this-run"
MODEL = "the-vendors-own-name"
WORDS = ("This ", "is ", "the ", "vendor.")
TEXT = "".join(WORDS)
TOOL_INPUT = {"city": "Paris"}
CHAT_USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
CHAT_USAGE |= {"prompt_tokens_details": {"cached_tokens": 5}}  # type: ignore[dict-item] # as JSON has it
MESSAGES_USAGE = {"input_tokens": 15, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 0}


class Vendors:
    """`asked`: what came, with path, headers (names in lower case) and body. `paid`: who called, and when."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.paid: list[tuple[str, str]] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vendors", daemon=True)

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def settings(self) -> Mapping[str, str]:
        return {f"TOLLGATE_VENDOR_{letter}_BASE_URL": self.url for letter in "ABC"}

    def service_account(self) -> str:
        """A secret's value for VENDOR_C, whose token endpoint is here too."""
        pem = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        account = {"client_email": "bot@p.example", "private_key": pem.decode(), "token_uri": f"{self.url}/token"}
        return base64.b64encode(json.dumps(account).encode()).decode()

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/messages", self._messages)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/projects/p/locations/l/endpoints/openapi/chat/completions", self._chat)
        app.router.add_post("/token", self._token)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _note(self, request: web.Request) -> dict[str, Any]:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body: dict[str, Any] = await request.json()
        self.asked.append({"path": request.path, "headers": headers, "body": body})
        return body

    def _complaint(self, body: dict[str, Any]) -> web.Response | None:
        """Servers that say too much: the credential they refuse, and who they are."""
        said = json.dumps(body["messages"])
        headers = self.asked[-1]["headers"]
        sent = headers.get("authorization") or headers.get("x-api-key")
        for status in (401, 429, 500, 529):
            if f"fail {status}" in said:
                error = {"type": "vendor_error", "message": f"{self.host} does not like {sent}"}
                return web.json_response({"type": "error", "error": error}, status=status)
        return None

    async def _token(self, request: web.Request) -> web.Response:
        return web.json_response({"access_token": ACCESS_TOKEN, "expires_in": 3600, "token_type": "Bearer"})

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body = await self._note(request)
        if complaint := self._complaint(body):
            return complaint
        used = {"type": "tool_use", "id": "t1", "name": "weather", "input": TOOL_INPUT}
        content = used if body.get("tools") else {"type": "text", "text": TEXT}
        stop = {"stop_reason": "tool_use" if body.get("tools") else "end_turn", "stop_sequence": None}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
        if not body.get("stream"):
            usage = MESSAGES_USAGE | {"output_tokens": 10}
            return web.json_response(message | stop | {"content": [content], "usage": usage})
        begun = message | {"content": [], "stop_reason": None, "stop_sequence": None}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": begun | {"usage": MESSAGES_USAGE | {"output_tokens": 1}}},
            {"type": "ping"},
            *_block(content),
            {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 10}},
            {"type": "message_stop"},
        ]
        return await _stream(request, [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events])

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._note(request)
        if complaint := self._complaint(body):
            return complaint
        call = {"index": 0, "id": "t1", "type": "function"}
        call |= {"function": {"name": "weather", "arguments": json.dumps(TOOL_INPUT)}}
        said: dict[str, Any] = {"tool_calls": [call]} if body.get("tools") else {"content": TEXT}
        reason = "tool_calls" if body.get("tools") else "stop"
        answer = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": None} | said, "finish_reason": reason}
            answer |= {"object": "chat.completion", "choices": [choice], "usage": CHAT_USAGE}
            return web.json_response(answer)
        deltas = [said] if body.get("tools") else [{"content": word} for word in WORDS]
        choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in [{"role": "assistant"}, *deltas]]
        choices += [[{"index": 0, "delta": {}, "finish_reason": reason}]]
        answer |= {"object": "chat.completion.chunk"}
        frames = [answer | {"choices": choice, "usage": None} for choice in choices]
        frames += [answer | {"choices": [], "usage": CHAT_USAGE}]
        return await _stream(request, [f"data: {json.dumps(frame)}\n\n" for frame in frames] + ["data: [DONE]\n\n"])


def _block(content: dict[str, Any]) -> list[dict[str, Any]]:
    if content["type"] == "text":
        deltas = [{"type": "text_delta", "text": word} for word in WORDS]
        begun = content | {"text": ""}
    else:
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(TOOL_INPUT)}]
        begun = content | {"input": {}}
    start = {"type": "content_block_start", "index": 0, "content_block": begun}
    told = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    return [start, *told, {"type": "content_block_stop", "index": 0}]


async def _stream(request: web.Request, frames: list[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for frame in frames:
        await response.write(frame.encode())
    await response.write_eof()
    return response
