"""`settings.json` in the data directory: what the `up` that serves it was started with, for `tollgate doctor`.

`up` writes it beside `up.json` and removes it with that. In place of a value that may hold a secret there is a digest,
whose key is in another file: the file alone gives away no secret, not even one that can be guessed.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass

from control.edges.process.data_directory import DataDirectory
from runtime.private_files import replace_file
from runtime.setting_names import NAMES, SETTINGS_OF_COMMANDS, holds_secret

_NAME = "settings.json"


@dataclass(frozen=True, slots=True)
class StartedSettings:
    """Values of settings that are no secrets, and digests of the others, by name."""

    plain: Mapping[str, str]
    digests: Mapping[str, str]
    key: str

    @property
    def names(self) -> frozenset[str]:
        return frozenset({*self.plain, *self.digests})

    def has(self, name: str, value: str) -> bool:
        """Return whether the setting has this value."""
        if name in self.plain:
            return self.plain[name] == value
        return hmac.compare_digest(self.digests.get(name, ""), _digest(self.key, name, value))


def settings_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of the product that this environment sets."""
    return {name: value for name, value in environment.items() if name in NAMES - SETTINGS_OF_COMMANDS and value}


def write(directory: DataDirectory, environment: Mapping[str, str]) -> None:
    """Write the settings of `up`: those of its environment and its flags."""
    key = directory.settings_key()
    settings = settings_in(environment)
    digests = {name: _digest(key, name, value) for name, value in settings.items() if holds_secret(name, value)}
    plain = {name: value for name, value in settings.items() if name not in digests}
    replace_file(directory.path / _NAME, json.dumps({"plain": plain, "digests": digests}, indent=2) + "\n")


def remove(directory: DataDirectory) -> None:
    """Remove the file, also after an `up` was killed. Only the holder of the directory's lock may call this."""
    (directory.path / _NAME).unlink(missing_ok=True)


def read(directory: DataDirectory) -> StartedSettings | None:
    """The settings of the `up` that serves the directory. None: none does, it is older, or the file cannot be read."""
    try:
        if not directory.is_served():
            return None
        fields = json.loads((directory.path / _NAME).read_text())
        return StartedSettings(dict(fields["plain"]), dict(fields["digests"]), directory.kept("settings.key"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(key: str, name: str, value: str) -> str:
    return hmac.digest(key.encode(), f"{name}={value}".encode(), "sha256").hex()
