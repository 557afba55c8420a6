"""Sends the requests of the generated operations: repeats, errors, idempotency keys; for threads, and for asyncio."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import httpx

from tollgate_client.client import Client
from tollgate_client.errors import UnexpectedStatus
from tollgate_client.failures import TollgateError, error_of, no_answer
from tollgate_client.retries import IDEMPOTENCY_KEY, Retries

_Parse = Callable[..., Any]
"""A generated function: `(client=…, response=…)`. It looks at `client` only if the answer's status is unknown to it."""
_ANY_CLIENT = Client(base_url="", raise_on_unexpected_status=True)
_HEADERS: ContextVar[httpx.Headers] = ContextVar("headers")
"""Those of the latest answer in this thread or task."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Transport:
    """A connection pool, and the terms of repeats."""

    client: httpx.Client
    retries: Retries

    def send(self, request: httpx.Request) -> httpx.Response:
        """Return the successful answer. Raises TollgateError."""
        repeats = 0
        while True:
            try:
                answer = self.client.send(request)
                if answer.is_success:
                    return answer
                error = error_of(answer)
            except httpx.TransportError as failure:
                error = no_answer(failure)
                error.__cause__ = failure
            repeats += 1
            wait_s = self.retries.wait_s(request, error, repeats)
            if wait_s is None:
                raise error
            time.sleep(wait_s)


@dataclass(frozen=True, slots=True)
class AsyncTransport:
    """A connection pool, and the terms of repeats, on asyncio."""

    client: httpx.AsyncClient
    retries: Retries

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Return the successful answer. Raises TollgateError."""
        repeats = 0
        while True:
            try:
                answer = await self.client.send(request)
                if answer.is_success:
                    return answer
                error = error_of(answer)
            except httpx.TransportError as failure:
                error = no_answer(failure)
                error.__cause__ = failure
            repeats += 1
            wait_s = self.retries.wait_s(request, error, repeats)
            if wait_s is None:
                raise error
            await asyncio.sleep(wait_s)


class Operations:
    """The operations of one tag. The generated methods are below this class."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def _call(self, request: dict[str, Any], parse: _Parse, takes_idempotency_key: bool) -> Any:
        prepared = self._transport.client.build_request(**_with_key(request, takes_idempotency_key))
        return _parsed(parse, self._transport.send(prepared))


class AsyncOperations:
    """The operations of one tag on asyncio. The generated methods are below this class."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def _call(self, request: dict[str, Any], parse: _Parse, takes_idempotency_key: bool) -> Any:
        prepared = self._transport.client.build_request(**_with_key(request, takes_idempotency_key))
        return _parsed(parse, await self._transport.send(prepared))


def _with_key(request: dict[str, Any], takes_idempotency_key: bool) -> dict[str, Any]:
    """Give a request that creates something a key of its own, the same for all its repeats; the caller's wins."""
    headers = httpx.Headers(request.get("headers"))
    if takes_idempotency_key:
        headers.setdefault(IDEMPOTENCY_KEY, str(uuid.uuid4()))
    return request | {"headers": headers}


def _parsed(parse: _Parse, answer: httpx.Response) -> Any:
    """Return the answer as the document describes it. A newer API may have values that this client does not know."""
    _HEADERS.set(answer.headers)
    try:
        return parse(client=_ANY_CLIENT, response=answer)
    except (AttributeError, KeyError, TypeError, ValueError, UnexpectedStatus) as error:
        where = f"{answer.request.method} {answer.request.url.path}"
        reason = f"{where}: the answer is not what this version of tollgate-client knows ({error})"
        raise TollgateError("FOREIGN_ANSWER", reason, answer.status_code) from error


def with_headers(operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, httpx.Headers]:
    """Return what `operation(*args, **kwargs)` returns, and the answer's headers: `etag` is what `if_match` takes."""
    answer = operation(*args, **kwargs)
    return answer, _HEADERS.get()


async def with_headers_async(
    operation: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> tuple[T, httpx.Headers]:
    """Return what `await operation(*args, **kwargs)` returns, and the answer's headers, as `with_headers` does."""
    answer = await operation(*args, **kwargs)
    return answer, _HEADERS.get()
