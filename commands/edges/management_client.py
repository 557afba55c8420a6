"""A client of the management API."""

import asyncio
from typing import Any

import aiohttp

from commands.errors import AwayError, RefusedError
from runtime.tls.pinned import PeerTls

TIMEOUT_S = 30.0
_RETRIES = 3
_MAX_DETAILS = 2
_SUCCESS = (200, 202)
"""The bound for the management API, and for the proxy when it wakes a deployment."""


class ManagementClient:
    """The management API at a URL, with one workspace key, which no redirect takes along.

    A PATCH of a resource that it has read is made only if nobody else has changed the resource since.
    """

    def __init__(self, url: str, api_key: str, timeout_s: float = TIMEOUT_S, tls: PeerTls = True) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._tags: dict[str, str] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls),
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The answer's JSON. Waits when the key's rate limit says so; AwayError or RefusedError otherwise.

        `query`: a list is sent as a repeated parameter, None not at all.
        """
        parameters = _parameters(query)
        for attempt in range(_RETRIES + 1):
            status, answer = await self._ask(method, path, body, parameters)
            if status in _SUCCESS:
                if method == "PATCH":
                    self._tags.pop(path, None)
                return answer
            if status != 429 or attempt == _RETRIES:
                break
            await asyncio.sleep(float(answer.get("retry_after", 1)))
        if status == 412:
            raise RefusedError(
                "412: nothing was changed: somebody else changed it meanwhile. Run the command again", 412
            )
        message = _message(status, answer)
        if status >= 500 or status == 429:
            raise AwayError(message)
        raise RefusedError(message, status, str(answer.get("code", "")))

    async def _ask(self, method: str, path: str, body: Any, query: list[tuple[str, str]]) -> tuple[int, Any]:
        headers = {"If-Match": self._tags[path]} if method == "PATCH" and path in self._tags else {}
        request = self._session.request(
            method, self._url + path, json=body, params=query, headers=headers, allow_redirects=False
        )
        try:
            async with request as answer:
                value = await answer.json()
                if method == "GET" and answer.headers.get("ETag", "").startswith('"'):  # a weak one never matches
                    self._tags[path] = answer.headers["ETag"]
                return answer.status, value if isinstance(value, dict) else {}
        except TimeoutError as error:
            is_sent = not isinstance(error, aiohttp.ConnectionTimeoutError)
            raise AwayError(
                f"{self._url} gave no answer to {method} {path} within {self._timeout_s:g} s. Check that control runs"
                f" and is not stopped or overloaded (its log, its /readyz), and TOLLGATE_URL{_effect(method, is_sent)}"
            ) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise AwayError(
                f"{self._url} shows a certificate that is not trusted here"
                f" ({error.certificate_error.__class__.__name__}). Name an authority in SSL_CERT_FILE, or the very"
                " certificate in TOLLGATE_CONTROL_CERT_FILE (TOLLGATE_PROXY_CERT_FILE for a proxy's)"
            ) from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            reason = str(error) or type(error).__name__
            is_sent = not isinstance(error, aiohttp.ClientConnectorError)
            raise AwayError(
                f"{self._url} does not answer as the management API ({reason}). Check TOLLGATE_URL"
                f"{_effect(method, is_sent)}"
            ) from None


def _effect(method: str, is_sent: bool) -> str:
    """The remark that a change without an answer needs."""
    if method == "GET" or not is_sent:
        return ""
    return ". The change may have taken effect: look before you repeat it"


def _parameters(query: dict[str, Any]) -> list[tuple[str, str]]:
    listed = {name: value if isinstance(value, list | tuple) else [value] for name, value in query.items()}
    return [(name, str(value)) for name, values in listed.items() for value in values if value is not None]


def _message(status: int, answer: dict[str, Any]) -> str:
    """Return the error, and a line for each of the first fields that it names. A customer's name moves no cursor."""
    error = str(answer.get("error", "no reason given"))
    details = [detail for detail in answer.get("details") or [] if str(detail.get("message")) not in error]
    lines = [f"{status}: {error}"]
    lines += [f"  {detail.get('field')}: {_printable(str(detail.get('message')))}" for detail in details[:_MAX_DETAILS]]
    if len(details) > _MAX_DETAILS:
        lines.append(f"  and {len(details) - _MAX_DETAILS} more")
    return "\n".join(lines)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
