"""The context of a server with a certificate and its key, and the file in memory from which it is read.

OpenSSL reads certificates by a path only. The supervisor passes them to its workers as such a file: they find the pair
that it checked, whatever the files of the settings have come to meanwhile.
"""

import os
import ssl
import sys
import tempfile

CERT_FILE = "TOLLGATE_TLS_CERT_FILE"
KEY_FILE = "TOLLGATE_TLS_KEY_FILE"


class MemoryFile:
    """A file without a name, which a child process can inherit. On Linux it is in memory, never on a disk."""

    def __init__(self, content: bytes) -> None:
        if sys.platform.startswith("linux"):
            self.fd = os.memfd_create("tollgate")
        else:
            with tempfile.TemporaryFile() as file:
                self.fd = os.dup(file.fileno())
        self.replace(content)

    def replace(self, content: bytes) -> None:
        """Whoever reads in between may see a mixture, and reads again when told."""
        os.pwrite(self.fd, content, 0)
        os.ftruncate(self.fd, len(content))

    def close(self) -> None:
        os.close(self.fd)


def server_context(fd: int) -> ssl.SSLContext:
    """The context of a server whose certificates and key are in this open file. Raises ssl.SSLError.

    Versions and ciphers are Python's defaults.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    os.lseek(fd, 0, os.SEEK_SET)  # where opening it by this path does not begin at its start
    context.load_cert_chain(f"/dev/fd/{fd}")
    return context
