"""The part "trainer" of `tollgate up`: which settings it gets, when it is ready, how long it may take to stop.

See docs/reference/training.md#backends.
"""

from collections.abc import Mapping
from pathlib import Path

from control.operator.stack_parts import PYTHON_MODULE, TERMINAL_SIGNALS, StackPart, terminate
from runtime.child_process import Launch
from runtime.environment import Environment, SettingsError

READY_FILE = "trainer.ready"
_NOT_ITS_OWN = (
    *("TOLLGATE_SECRET_KEY", "TOLLGATE_SECRET_KEY_FILE", "TOLLGATE_OIDC_CLIENT_SECRET"),
    *("TOLLGATE_DATABASE_URL", "TOLLGATE_REDIS_URL", "TOLLGATE_ASYNC_REDIS_URL", "TOLLGATE_TLS_KEY_FILE"),
)
"""The settings of which the trainer gets no part: jobs run beside it."""
_DELIVERY_S = 30.0
"""The time to deliver what its jobs leave, after they have ended."""
_DEFAULT_STOP_GRACE_S = 10.0


def training_settings(data: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings by which control and the trainer find the same files."""
    read = Environment(environment)
    directory = Path(read.text("TOLLGATE_TRAINING_DIR", str(data / "training"))).absolute()
    store = read.text("TOLLGATE_CHECKPOINT_STORE", (directory / "checkpoints").as_uri())
    return {"TOLLGATE_TRAINING_DIR": str(directory), "TOLLGATE_CHECKPOINT_STORE": store}


def trainer_parts(data: Path, environment: Mapping[str, str], lock: int) -> list[StackPart]:
    """The part, unless training is off."""
    if Environment(environment).text("TOLLGATE_TRAINING_BACKEND", "local") == "off":
        return []
    ready_file = data / READY_FILE
    ready_file.unlink(missing_ok=True)
    argv = [*PYTHON_MODULE, "trainer", "--ready-file", str(ready_file)]
    own = {name: value for name, value in environment.items() if name not in _NOT_ITS_OWN}

    async def is_ready() -> bool:
        return ready_file.exists()

    launch = Launch(argv, own, (lock,), TERMINAL_SIGNALS)
    return [StackPart("trainer", launch, is_ready, terminate, _grace_s(environment))]


def _grace_s(environment: Mapping[str, str]) -> float:
    try:
        stop_grace_s = Environment(environment).seconds("TOLLGATE_TRAINING_STOP_GRACE_S", _DEFAULT_STOP_GRACE_S)
    except SettingsError:  # the trainer says so, and ends the start
        stop_grace_s = _DEFAULT_STOP_GRACE_S
    return stop_grace_s + _DELIVERY_S
