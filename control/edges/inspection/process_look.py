"""A look at control and proxy: their answers and `/readyz`, and whether a proxy would start with its settings."""

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from runtime.tls.pinned import PeerTls

_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ReadyLook:
    """`trouble`: why it does not answer, or "". `faults` and `degraded`: texts of `/readyz`."""

    trouble: str
    faults: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()


async def look_at_readyz(url: str, tls: PeerTls = True) -> ReadyLook:
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url + "/readyz", ssl=tls) as answer:
            return _read(answer.status, await answer.json(content_type=None))
    except TimeoutError:
        return ReadyLook("no answer in time")
    except aiohttp.ClientConnectorCertificateError:
        return ReadyLook("its certificate is not trusted here: see SSL_CERT_FILE and TOLLGATE_CONTROL_CERT_FILE")
    except aiohttp.ClientConnectorError as error:
        return ReadyLook(error.os_error.strerror or "it refuses connections")
    except (aiohttp.ClientError, ValueError, AttributeError, TypeError):
        return ReadyLook("what answers there is not Tollgate")


def _read(status: int, body: Any) -> ReadyLook:
    """Control names its fault as an error, a proxy as a check that is neither ok nor degraded."""
    degraded = tuple(str(text) for text in body.get("degraded", ()))
    if status == 200:
        return ReadyLook("", degraded=degraded)
    harmless = {"ok", *(text.partition(": ")[2] for text in degraded)}
    checks = {name: str(text) for name, text in body.get("checks", {}).items()}
    faults = tuple(f"{name}: {text}" for name, text in checks.items() if text not in harmless)
    return ReadyLook("", faults or (str(body.get("error", f"status {status}")),), degraded)


async def replica_revision(replica: Path) -> int:
    """The revision of the policy that a proxy of this machine has in its replica; 0 if it has none."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "proxy", "snapshot", "show"),
        env={**os.environ, "TOLLGATE_REPLICA_PATH": str(replica)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    stdout, _ = await process.communicate()
    match = re.match(rb"revision (\d+) of epoch", stdout)
    return int(match[1]) if match else 0


async def proxy_settings_trouble(environment: Mapping[str, str]) -> str:
    """The complaint of `python -m proxy settings check`; "" if there is none. Control must not import the proxy."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "proxy", "settings", "check"),
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            _, stderr = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return "the settings of the proxy could not be checked in time"
    return stderr.decode(errors="replace").strip().removeprefix("Error: ") if process.returncode else ""
