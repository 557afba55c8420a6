"""A caller of the proxy: a stock HTTP client that sends what the OpenAI SDK sends.

Not the SDK itself: the demo needs no package beyond the installed product. The journeys test the SDKs.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

_DATA = b"data: "


class RefusedError(Exception):
    """The proxy answered with a status other than 200. `body`: JSON or text."""

    def __init__(self, status: int, body: Any, retry_after: str) -> None:
        super().__init__(f"answered {status}: {body}")
        self.status = status
        self.body = body
        self.retry_after = retry_after


async def ask(proxy: str, api_key: str, slug: str, text: str) -> Any:
    """Send a call and return the answer's JSON. Raises RefusedError; never retries, so that refusals show."""
    async with aiohttp.ClientSession() as session, _post(session, proxy, api_key, _body(slug, text)) as answer:
        await _check(answer)
        return await answer.json()


async def ask_streamed(proxy: str, api_key: str, slug: str, text: str) -> AsyncIterator[Any]:
    """Yield the JSON of each chunk as it arrives, until `[DONE]`."""
    body = _body(slug, text) | {"stream": True}
    async with aiohttp.ClientSession() as session, _post(session, proxy, api_key, body) as answer:
        await _check(answer)
        async for line in answer.content:
            if line.startswith(_DATA) and line.strip() != b"data: [DONE]":
                yield json.loads(line.removeprefix(_DATA))


def _body(slug: str, text: str) -> dict[str, Any]:
    return {"model": slug, "messages": [{"role": "user", "content": text}]}


def _post(session: aiohttp.ClientSession, proxy: str, api_key: str, body: Any) -> Any:
    headers = {"Authorization": f"Bearer {api_key}", "Accept": "application/json"}
    return session.post(f"{proxy}/v1/chat/completions", json=body, headers=headers)


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 200:
        text = await answer.text()
        body = json.loads(text) if answer.content_type == "application/json" else text
        raise RefusedError(answer.status, body, answer.headers.get("Retry-After", ""))
