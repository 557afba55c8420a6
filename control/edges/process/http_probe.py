"""Asks a server of ours whether it is ready."""

import aiohttp


async def answers_ok(url: str) -> bool:
    """Return whether a GET is answered with 200 within a second."""
    try:
        timeout = aiohttp.ClientTimeout(total=1)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
