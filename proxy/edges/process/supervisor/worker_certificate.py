"""The certificate that workers show: a file in memory that they inherit, which follows the files of the settings."""

import logging
from collections.abc import Callable, Iterator

from proxy.edges.process.channel import Message
from runtime.tls.context import CERT_FILE, KEY_FILE, MemoryFile
from runtime.tls.files import CERTIFICATE_END_TEXT, CertificateFiles

NOT_FOR_WORKERS = frozenset((CERT_FILE, KEY_FILE, "TOLLGATE_CONTROL_CERT_FILE"))
"""The settings of which workers get none: one that is started while the files are broken must serve."""
log = logging.getLogger(__name__)


class WorkerCertificate:
    """The pair of `files`, checked. `tell` sends a message to all workers."""

    def __init__(self, files: CertificateFiles, tell: Callable[[Message], None]) -> None:
        self._files = files
        self._tell = tell
        self._memory = MemoryFile(files.pair.pem)
        self.fd = self._memory.fd
        files.changed = self._changed
        log.info("Calls come over TLS; the certificate is valid until %s.", files.valid_until)

    def _changed(self) -> None:
        self._memory.replace(self._files.pair.pem)
        self._tell({"is": "certificate"})

    def readings(self) -> Iterator[tuple[str, str, float]]:
        yield "tollgate_tls_certificate_not_after_seconds", CERTIFICATE_END_TEXT, self._files.pair.ends_at_s

    def close(self) -> None:
        self._memory.close()
