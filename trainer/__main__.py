"""`python -m trainer`: the trainer as one process. Settings come from the environment; flags override them."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from runtime.environment import SettingsError
from runtime.log_lines import log_to_stderr, log_uncaught
from runtime.private_files import UMASK
from runtime.setting_names import warnings_of
from trainer.app import UnusableBackendError, run
from trainer.edges.inherited_files import keep_inherited_files
from trainer.edges.trainer_directory import DirectoryUnusableError
from trainer.settings import BACKENDS, Settings

log = logging.getLogger("trainer")
_FLAGS = {
    "backend": "TOLLGATE_TRAINING_BACKEND",
    "directory": "TOLLGATE_TRAINING_DIR",
    "control_url": "TOLLGATE_CONTROL_URL",
}
"""The setting that each flag overrides."""


@click.command("tollgate trainer", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--backend", type=click.Choice(BACKENDS), help="Where jobs run. Default: TOLLGATE_TRAINING_BACKEND.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False),
    help="Where jobs' files are. Default: TOLLGATE_TRAINING_DIR, else ./.tollgate/training.",
)
@click.option("--control-url", help="Default: TOLLGATE_CONTROL_URL, else http://127.0.0.1:8081.")
@click.option("--ready-file", type=click.Path(dir_okay=False, path_type=Path), hidden=True)
def main(ready_file: Path | None, **flags: Any) -> None:
    """Tollgate's trainer: runs training jobs for a control plane until SIGTERM.

    Settings: TOLLGATE_* (see docs/reference/settings.md); flags override.
    """
    variables = {_FLAGS[name]: str(value) for name, value in flags.items() if value is not None}
    try:
        settings = Settings.from_environ(os.environ | variables)
    except SettingsError as error:
        _fail(str(error))
    log_to_stderr(settings.log_level)
    log_uncaught()
    for warning in warnings_of(os.environ):
        log.warning("%s", warning)
    try:
        asyncio.run(run(settings, ready_file))
    except (SettingsError, UnusableBackendError, DirectoryUnusableError) as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    click.echo(f"tollgate trainer: {message}", err=True)
    sys.exit(2)


if __name__ == "__main__":
    os.umask(UMASK)
    keep_inherited_files()
    main(prog_name="tollgate trainer")
