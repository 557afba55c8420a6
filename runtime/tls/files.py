"""The certificate and key of TOLLGATE_TLS_CERT_FILE and TOLLGATE_TLS_KEY_FILE, read again when the files change.

A pair that does not fit keeps the one before: whoever renews replaces one file after the other. What counts is where
the paths lead, so that a symbolic link that is switched (as in a Kubernetes secret) is a change, too.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.background import repeat_in_thread
from runtime.environment import Environment, SettingsError
from runtime.log_lines import OutageLog
from runtime.tls.context import CERT_FILE, KEY_FILE

if TYPE_CHECKING:
    from runtime.tls.pair import Pair

LOOK_AGAIN_S = 1.0
CERTIFICATE_END_TEXT = "Until when the certificate that callers see is valid, in seconds since 1970"
Stamp = tuple[int, int, int]
log = logging.getLogger(__name__)


def certificate_files(read: Environment, cert_name: str, key_name: str) -> "CertificateFiles | None":
    """The files that these two settings name; None if they name none. Raises `SettingsError`."""
    if not read.has(cert_name) and not read.has(key_name):
        return None
    for name, other in ((cert_name, key_name), (key_name, cert_name)):
        if not read.has(name):
            raise SettingsError(f"{name} is not set, and {other} needs it; set both, or neither")
    try:
        return CertificateFiles(Path(read.text(cert_name)), Path(read.text(key_name)))
    except ValueError as error:
        raise SettingsError(str(error)) from None


class CertificateFiles:
    """Two files, and the last pair in them that fitted. Raises `BadPairError` if they do not fit at first."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._paths = (certificate, key)
        self._stamps = self._stamps_now()
        self.pair = self._read()
        self.changed: Callable[[], None] = lambda: None
        """Called in the event loop when there is another pair."""
        self._misfit = OutageLog(log)

    def _read(self) -> "Pair":
        # Imported here: most processes read the settings of TLS, and have none.
        from runtime.tls.pair import Pair

        return Pair.read(*self._paths)

    def look_again(self) -> bool:
        """Read the files if they have changed, or did not fit. Return whether there is another pair now."""
        stamps = self._stamps_now()
        if stamps == self._stamps and not self._misfit.cause:
            return False
        self._stamps = stamps
        try:
            pair = self._read()
        except ValueError as error:
            self._misfit.begins(
                f"{error}. New connections go on with the certificate before, valid until {self.valid_until}. Mend the"
                " files; they are read again within a second."
            )
            return False
        is_another = pair != self.pair
        self.pair = pair
        if is_another:
            log.info("New connections have the new certificate, valid until %s.", self.valid_until)
            self._misfit.cause = ""
        self._misfit.ends(f"The files of {CERT_FILE} and {KEY_FILE} fit again.")
        return is_another

    @property
    def valid_until(self) -> str:
        """The end of the certificate in use, such as `2027-01-31 12:00 UTC`."""
        return f"{datetime.fromtimestamp(self.pair.ends_at_s, UTC):%Y-%m-%d %H:%M} UTC"

    async def follow(self) -> None:
        """Look again for ever, in a thread."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            if self.look_again():
                loop.call_soon_threadsafe(self.changed)

        await repeat_in_thread(look, LOOK_AGAIN_S)

    def _stamps_now(self) -> list[Stamp | None]:
        return [_stamp_of(path) for path in self._paths]


def _stamp_of(path: Path) -> Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns, status.st_size
