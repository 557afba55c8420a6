"""A client that accepts the very certificate of a file: any name, also an ended one, and each later one at once."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from runtime.environment import Environment, SettingsError
from runtime.tls.pinned import PinnedContext, peer_tls
from tests.fakes.front import Front, listening
from tests.fakes.pair_files import LOCALHOST, PairFiles, replace, self_signed

NAME = "TOLLGATE_CONTROL_CERT_FILE"


@pytest.fixture
def pair(tmp_path: Path) -> PairFiles:
    return PairFiles(tmp_path).issue("gateway.example")


@pytest.fixture
async def served(pair: PairFiles) -> AsyncIterator[Front]:
    async with listening(pair=pair) as one:
        yield one


async def status(served: Front, tls: ssl.SSLContext | bool) -> int:
    connector = aiohttp.TCPConnector(ssl=tls)
    session = aiohttp.ClientSession(connector=connector)
    async with session, session.get(f"https://127.0.0.1:{served.port}/") as answer:
        return answer.status


def renew(served: Front, pair: PairFiles) -> None:
    tls = served.server._tls
    assert tls is not None
    tls.context = pair.read().context()


async def test_certificate_is_accepted_under_any_name_and_no_other(served: Front, pair: PairFiles) -> None:
    tls = PinnedContext(pair.cert_file)
    assert await status(served, tls) == 200
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await status(served, True)
    stranger, key = self_signed("gateway.example")
    own = pair.cert_file.read_bytes()
    own_key = pair.key_file.read_bytes()
    replace(pair.cert_file, stranger)
    replace(pair.key_file, key)
    renew(served, pair)
    replace(pair.cert_file, own)
    replace(pair.key_file, own_key)
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await status(served, PinnedContext(pair.cert_file))


async def test_renewed_certificate_is_accepted_at_once_and_the_one_before_still(served: Front, pair: PairFiles) -> None:
    tls = PinnedContext(pair.cert_file)
    pair.issue()
    assert await status(served, tls) == 200, "the server changes a moment later"
    renew(served, pair)
    assert await status(served, tls) == 200


async def test_file_that_breaks_leaves_what_is_accepted(served: Front, pair: PairFiles) -> None:
    tls = PinnedContext(pair.cert_file)
    replace(pair.cert_file, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert await status(served, tls) == 200
    pair.cert_file.unlink()
    assert await status(served, tls) == 200


async def test_ended_certificate_parts_nothing(pair: PairFiles) -> None:
    pair.issue(days=-1)
    async with listening(pair=pair) as served:
        assert await status(served, PinnedContext(pair.cert_file)) == 200


async def test_authorities_in_the_file_are_not_trusted(pair: PairFiles) -> None:
    """The file of a server holds its chain: trust in its authority would be trust in everybody's certificates."""
    other = PairFiles(pair.directory / "other")
    other.directory.mkdir()
    other.issue("other.example")
    pair.cert_file.write_bytes(pair.cert_file.read_bytes() + other.cert_file.read_bytes())
    async with listening(pair=other) as served:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status(served, PinnedContext(pair.cert_file))


def test_setting_that_names_no_certificate_ends_a_start(tmp_path: Path) -> None:
    assert peer_tls(Environment({}), NAME) is True
    with pytest.raises(SettingsError, match=f"{NAME}: it cannot be read: No such file"):
        peer_tls(Environment({NAME: str(tmp_path / "none")}), NAME)
    for text in ("none", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        (tmp_path / "file").write_text(text)
        with pytest.raises(SettingsError, match=f"{NAME}: expected a certificate in PEM"):
            peer_tls(Environment({NAME: str(tmp_path / "file")}), NAME)


async def test_authority_of_ssl_cert_file_is_trusted(pair: PairFiles) -> None:
    """The way to trust a private authority, for all of our programs: OpenSSL reads the variable."""
    pair.issue(LOCALHOST)
    async with listening(pair=pair) as served:
        program = (
            "import asyncio\n"
            "from commands.edges.management_client import ManagementClient\n"
            "async def main():\n"
            f"    client = ManagementClient('https://{LOCALHOST}:{served.port}', 'key')\n"
            "    try:\n"
            "        await client.call('GET', '/v1/gateway/groups')\n"
            "    except Exception as error:\n"
            "        print(error)\n"
            "    await client.close()\n"
            "asyncio.run(main())\n"
        )
        trusting = await printed(program, {"SSL_CERT_FILE": str(pair.cert_file)})
        assert "does not answer as the management API" in trusting, "the echo of the test's server"
        assert "shows a certificate that is not trusted here" in await printed(program, {})


async def printed(program: str, settings: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), env={**os.environ, **settings}, stdout=asyncio.subprocess.PIPE
    )
    return (await process.communicate())[0].decode()
