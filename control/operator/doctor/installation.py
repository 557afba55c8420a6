"""The settings with which `up` or a plane would run here: those of the environment and of the data directory.

Creates nothing: where `up` would make a key, a placeholder stands in its place.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from control.edges.process import started_settings, up_record
from control.edges.process.data_directory import DataDirectory, DataDirectoryError
from control.edges.process.started_settings import StartedSettings, settings_in
from control.edges.process.up_record import UpRecord
from control.operator.doctor.findings import Finding, fault, ok, warning
from control.settings import Settings, control_keys
from runtime.environment import Environment, SettingsError
from runtime.secret_keys import has_secret_keys
from runtime.setting_names import NAMES, PREFIX, SETTINGS_OF_COMMANDS, holds_secret, warnings_of

_PLACEHOLDERS = {
    "TOLLGATE_INTERNAL_TOKEN": "not made yet, so nothing needs it",
    "TOLLGATE_SECRET_KEY": base64.b64encode(bytes(32)).decode(),
}


@dataclass(frozen=True)
class Installation:
    """`environ`: the environment; `data`: the data directory, which need not exist.

    `unknown`: the settings of a running `up` whose values nobody here knows. `differences`: what else this shell has.
    """

    environ: Mapping[str, str]
    directory: DataDirectory
    database_url: str | None
    redis_url: str | None
    is_running: bool = False
    unknown: frozenset[str] = frozenset()
    differences: tuple[Finding, ...] = ()

    def as_started(self) -> "Installation":
        """The same with the settings of the `up` that serves the directory instead of this shell's, if one does."""
        record = started_settings.read(self.directory)
        if record is None:
            return self
        flags = {"TOLLGATE_DATABASE_URL": self.database_url or "", "TOLLGATE_REDIS_URL": self.redis_url or ""}
        here = settings_in({**self.environ, **flags})
        alike = {name: value for name, value in here.items() if record.has(name, value)}
        environ = {**record.plain, **alike}
        others = {name: value for name, value in self.environ.items() if name not in NAMES - SETTINGS_OF_COMMANDS}
        return Installation(
            {**others, **environ},
            self.directory,
            environ.get("TOLLGATE_DATABASE_URL"),
            environ.get("TOLLGATE_REDIS_URL"),
            is_running=True,
            unknown=record.names - environ.keys(),
            differences=tuple(_difference(name, here[name], record) for name in sorted(here.keys() - alike.keys())),
        )

    def not_checked(self, check: str, name: str) -> Iterator[Finding]:
        """Yield that a check needs a setting of the running product that is not known here."""
        if name in self.unknown:
            text = f"not checked: this shell does not have the {name} of the running product, which holds a secret"
            yield warning(check, text, "Run this with the product's environment")

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
            has_them = self._has_keys() and "TOLLGATE_SECRET_KEY" not in self.unknown
            return control_keys(Environment(self.environment())) if has_them else ()
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
        yield from self.not_checked("secrets", "TOLLGATE_SECRET_KEY")
        if not path.is_dir():
            if not self.database_url:
                yield ok("data", f"{path} does not exist yet; `tollgate up` makes it")
            return
        if self.directory.database.exists() and not self._has_keys() and "TOLLGATE_SECRET_KEY" not in self.unknown:
            remedy = "Restore secret.key, or set TOLLGATE_SECRET_KEY to the key that sealed its secrets"
            yield fault("data", f"{path} has a database but no secret.key", remedy)

    def settings_findings(self, proxy_trouble: str) -> Iterator[Finding]:
        """`proxy_trouble`: what the proxy says of its settings."""
        yield from self.differences
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
            place = "for the running product" if self.is_running else "in the environment"
            yield ok("settings", f"{count + len(self.unknown)} set {place}, all valid{self._unseen()}")

    def _unseen(self) -> str:
        if not self.unknown:
            return ""
        return f" but these, which hold secrets and are not in this shell: {', '.join(sorted(self.unknown))}"


def _difference(name: str, here: str, record: StartedSettings) -> Finding:
    """A setting that this shell has otherwise than the running product. A value that may hold a secret is not shown."""
    remedy = "The product's is judged here. It takes over another one when it is started again with it"
    if name not in record.names:
        return warning("settings", f"{name} is set in this shell, and not for the running product", remedy)
    if name in record.plain and not holds_secret(name, here):
        there = record.plain[name]
        return warning("settings", f"{name} is {here!r} in this shell, and {there!r} for the running product", remedy)
    return warning("settings", f"{name} in this shell is not that of the running product", remedy)
