"""Asks a server of ours whether it is ready."""

import aiohttp

from runtime.tls.pinned import pinned


async def answers_ok(url: str, cert_file: str | None = None) -> bool:
    """Return whether a GET is answered with 200 within a second. `cert_file`: the very certificate to accept."""
    timeout = aiohttp.ClientTimeout(total=1)
    try:
        tls = pinned(cert_file)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=tls) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return False
