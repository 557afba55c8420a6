"""Wires the trainer together and runs it until a signal.

The decisions are in `reconciler`, what control is told in `job_reports`, the loop in `sync_loop`.
"""

import asyncio
import importlib
import logging
import signal
import time
from pathlib import Path
from typing import Protocol

from policy.training.reports import WantedState
from runtime.background import cancelled, is_set_within
from runtime.log_lines import cause_of
from trainer.backend import Backend, CheckpointSource, EnvironmentSource
from trainer.edges.checkpoints import checkpoints_in
from trainer.edges.control_client import ControlClient
from trainer.edges.terminal_socket import TerminalDialler
from trainer.edges.trainer_directory import DirectoryInUseError, TrainerDirectory
from trainer.looks.caches import Caches
from trainer.settings import LOCAL, OFF, Settings
from trainer.sync_loop import SyncLoop
from trainer.terminals import Terminals

DIRECTORY_PAUSE_S = 0.5
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
log = logging.getLogger(__name__)


class UnusableBackendError(Exception):
    """The settings name a backend that cannot run here. The message names the setting and the remedy."""


class BackendClass(Protocol):
    """The class of a backend: settings, environment source and store make one."""

    def __call__(
        self, settings: Settings, environment: EnvironmentSource, checkpoints: CheckpointSource
    ) -> Backend: ...


async def run(settings: Settings, ready_file: Path | None = None) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. Makes `ready_file` once control has answered.

    Raises SettingsError, UnusableBackendError and DirectoryUnusableError before it serves.
    """
    make_backend = backend_class(settings)
    stop = _stop_event()
    directory = TrainerDirectory(settings.directory)
    control = ControlClient(settings.control_url, settings.internal_token, settings.control_tls)
    dialler = TerminalDialler(settings.control_url, settings.internal_token, settings.control_tls)
    try:
        if (name := await _take_directory(directory, stop)) is None:
            return
        checkpoints = checkpoints_in(settings.checkpoint_store, settings.checkpoint_sizes)
        backend = make_backend(settings, control.environment, checkpoints)
        terminals = Terminals(backend, dialler)
        caches = Caches(backend, control)

        def follow(state: WantedState) -> None:
            terminals.connect(state.terminals)
            caches.forget(state.forgotten_caches)

        loop = SyncLoop(backend, control, name, time.monotonic, follow)
        cache_task = asyncio.create_task(caches.run())
        log.info("Trainer %s runs jobs on backend %s for %s.", name, backend.name, settings.control_url)
        try:
            await _serve(loop, stop, ready_file)
        finally:
            await cancelled(cache_task)
            await terminals.close()
    finally:
        await dialler.close()
        await control.close()
        directory.release()
    log.info("Trainer stopped.")


def backend_class(settings: Settings) -> BackendClass:
    """The backend of the settings. Its libraries are imported only if it is wanted."""
    if settings.backend == OFF:
        raise UnusableBackendError("TOLLGATE_TRAINING_BACKEND is off: there is nothing to run. Set local or ray")
    if settings.backend == LOCAL:
        from trainer.edges.local import LocalBackend

        return LocalBackend
    if settings.ray_address is None:
        raise UnusableBackendError("TOLLGATE_RAY_ADDRESS is not set; with TOLLGATE_TRAINING_BACKEND=ray it has to be")
    try:
        importlib.import_module("ray")
    except ImportError as error:
        raise UnusableBackendError(
            f"TOLLGATE_TRAINING_BACKEND is ray, and ray cannot be imported ({error}). Install tollgate[ray]"
        ) from None
    from trainer.edges.ray import RayBackend

    return RayBackend


async def _take_directory(directory: TrainerDirectory, stop: asyncio.Event) -> str | None:
    """The trainer's name, once the directory is free. None: it is to stop."""
    has_told = False
    while not stop.is_set():
        try:
            return directory.lock()
        except DirectoryInUseError as error:
            if not has_told:
                log.warning(
                    "Trainer waits: %s. Stop the other one, or set another TOLLGATE_TRAINING_DIR.", cause_of(error)
                )
            has_told = True
        await is_set_within(stop, DIRECTORY_PAUSE_S)
    return None


async def _serve(loop: SyncLoop, stop: asyncio.Event, ready_file: Path | None) -> None:
    async with asyncio.TaskGroup() as tasks:
        stop_task = tasks.create_task(_stop_on(stop, loop))
        telling = tasks.create_task(_tell_ready(loop, ready_file))
        await loop.run()
        stop_task.cancel()
        telling.cancel()


async def _stop_on(stop: asyncio.Event, loop: SyncLoop) -> None:
    await stop.wait()
    log.info("Trainer is stopping.")
    loop.stop()


async def _tell_ready(loop: SyncLoop, ready_file: Path | None) -> None:
    await loop.has_synced.wait()
    if ready_file is not None:
        await asyncio.to_thread(ready_file.touch)


def _stop_event() -> asyncio.Event:
    event = asyncio.Event()
    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event
