"""The settings with which `up` or a plane would run here: those of the environment and of the data directory.

Creates nothing: where `up` would make a key, a placeholder stands in its place.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from control.edges.process import up_record
from control.edges.process.data_directory import DataDirectory, DataDirectoryError
from control.edges.process.up_record import UpRecord
from control.operator.doctor.findings import Finding, fault, ok, warning
from control.settings import Settings, control_keys
from runtime.environment import Environment, SettingsError
from runtime.secret_keys import has_secret_keys
from runtime.setting_names import PREFIX, warnings_of

_PLACEHOLDERS = {
    "TOLLGATE_INTERNAL_TOKEN": "not made yet, so nothing needs it",
    "TOLLGATE_SECRET_KEY": base64.b64encode(bytes(32)).decode(),
}


@dataclass(frozen=True)
class Installation:
    """`environ`: the environment; `data`: the data directory, which need not exist."""

    environ: Mapping[str, str]
    directory: DataDirectory
    database_url: str | None
    redis_url: str | None

    @property
    def own_redis_socket(self) -> Path | None:
        """The socket of the Redis that `up` runs; None if another one is named."""
        return None if self.redis_url else self.directory.redis_socket()

    def environment(self) -> dict[str, str]:
        """The environment that `up` gives to its parts."""
        directory = self.directory
        ours = {
            "TOLLGATE_DATABASE_URL": self.database_url or directory.database_url,
            "TOLLGATE_REDIS_URL": self.redis_url or f"unix://{directory.redis_socket()}",
            "TOLLGATE_JOURNAL_DIR": self.environ.get("TOLLGATE_JOURNAL_DIR") or str(directory.journal),
            "TOLLGATE_REPLICA_PATH": self.environ.get("TOLLGATE_REPLICA_PATH") or str(directory.replica),
        }
        files = {"TOLLGATE_INTERNAL_TOKEN": "internal.token", "TOLLGATE_SECRET_KEY": "secret.key"}
        if self.environ.get("TOLLGATE_SECRET_KEY_FILE"):
            del files["TOLLGATE_SECRET_KEY"]
        for name, file in files.items():
            ours[name] = self.environ.get(name) or self.directory.kept(file) or _PLACEHOLDERS[name]
        return {**self.environ, **ours}

    def secret_keys(self) -> Sequence[bytes]:
        """The keys that seal secrets; empty while there is none, or a wrong one."""
        try:
            return control_keys(Environment(self.environment())) if self._has_keys() else ()
        except ValueError:
            return ()

    def _has_keys(self) -> bool:
        return has_secret_keys(self.environ) or bool(self.directory.kept("secret.key"))

    def running(self) -> UpRecord | None:
        """The addresses of the `up` that serves the directory; None if there is none."""
        try:
            return up_record.read(self.directory)
        except DataDirectoryError:
            return None

    def unreadable_directory(self) -> Iterator[Finding]:
        """Yield why the directory cannot be read, if so: then no other check could say what is in it."""
        path = self.directory.path
        try:
            if path.is_dir():
                next(path.iterdir(), None)
                self.directory.database.exists()
        except OSError as error:
            yield fault("data", f"{path} cannot be read ({error.strerror})", "Run this as the user of `tollgate up`")

    def directory_findings(self) -> Iterator[Finding]:
        """A database without its key."""
        path = self.directory.path
        if not path.is_dir():
            if not self.database_url:
                yield ok("data", f"{path} does not exist yet; `tollgate up` makes it")
            return
        if self.directory.database.exists() and not self._has_keys():
            remedy = "Restore secret.key, or set TOLLGATE_SECRET_KEY to the key that sealed its secrets"
            yield fault("data", f"{path} has a database but no secret.key", remedy)

    def settings_findings(self, proxy_trouble: str) -> Iterator[Finding]:
        """`proxy_trouble`: what the proxy says of its settings."""
        for text in warnings_of(self.environ):
            cause, _, remedy = text.partition(". ")
            yield warning("settings", cause, remedy)
        troubles = [proxy_trouble] if proxy_trouble else []
        try:
            Settings.from_environ(self.environment())
        except (SettingsError, ValueError) as error:
            troubles.append(str(error))
        for trouble in dict.fromkeys(troubles):
            yield fault("settings", trouble, "See docs/reference/settings.md; the process does not start with it")
        if not troubles:
            count = sum(name.startswith(PREFIX) for name in self.environ)
            yield ok("settings", f"{count} set in the environment, all valid")
