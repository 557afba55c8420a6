"""A client's context that accepts one certificate: the very one in a file, whatever name or authority it has.

`tollgate up` gives its parts the certificate of TOLLGATE_TLS_CERT_FILE so: they dial each other by address, which it
does not name. Nobody else can show it, as that takes its key. The file is looked at before each handshake.
"""

import os
import re
import ssl
from pathlib import Path
from typing import Any

from runtime.environment import Environment, SettingsError

PeerTls = ssl.SSLContext | bool
"""The check of a server's certificate, for aiohttp. True: as usual, by its name and the system's authorities."""
_FIRST = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_NO_CHECK_TIME = 0x200000
"""OpenSSL's flag. A certificate that has ended keeps callers out, who say so; our parts must still bill and stop."""


def peer_tls(read: Environment, name: str) -> PeerTls:
    """Return the check of a server of ours: by the certificate in the file of this setting, if it is set.

    Raises `SettingsError`.
    """
    if not read.has(name):
        return True
    try:
        return PinnedContext(Path(read.text(name)))
    except (ssl.SSLError, ValueError):
        raise SettingsError(f"{name}: expected a certificate in PEM") from None
    except OSError as error:
        raise SettingsError(f"{name}: it cannot be read: {error.strerror}") from None


def pinned(cert_file: str | None) -> PeerTls:
    """The same by the file's name. Raises OSError or ValueError."""
    return PinnedContext(Path(cert_file)) if cert_file else True


class PinnedContext(ssl.SSLContext):
    """Accepts the first certificate of the file at `path`, and the one before it: servers change a moment later.

    Raises OSError or ValueError if the file has none at first.
    """

    def __new__(cls, path: Path) -> "PinnedContext":
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp_of(path)
        self._certificates = [_first_of(path)]
        self._accepting = _accepting(self._certificates)

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        self._look_again()
        return self._accepting.wrap_bio(*args, **options)

    def _look_again(self) -> None:
        try:
            stamp = _stamp_of(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            certificate = _first_of(self._path)
            certificates = [certificate, *(one for one in self._certificates if one != certificate)][:2]
            self._accepting = _accepting(certificates)
            self._certificates = certificates
        except (OSError, ValueError):  # the server keeps the one before, too, and logs why
            return


def _accepting(certificates: list[str]) -> ssl.SSLContext:
    """A context that accepts these. Raises ssl.SSLError, which is an OSError, if OpenSSL cannot read them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    context.load_verify_locations(cadata="\n".join(certificates))
    return context


def _first_of(path: Path) -> str:
    block = _FIRST.search(path.read_bytes())
    if block is None:
        raise ValueError("no certificate")
    return block[0].decode("ascii")


def _stamp_of(path: Path) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_ctime_ns, status.st_size
