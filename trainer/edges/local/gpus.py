"""The GPUs of this machine, as NVIDIA's driver lists them, and which of them each node gets.

See docs/reference/training.md#local.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `uuid`: how CUDA names it. `type`: how jobs name its kind, such as `H100`."""

    uuid: str
    type: str


def list_gpus() -> tuple[Gpu, ...]:
    """All GPUs, by their place on the bus; none without the driver."""
    gpus = []
    for path in sorted(_DRIVER.glob("*/information")):
        pairs = (line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
        fields = {name.strip(): value.strip() for name, _, value in pairs}
        if fields.get("GPU UUID", "").startswith("GPU-"):
            gpus.append(Gpu(fields["GPU UUID"], gpu_type(fields.get("Model", ""))))
    return tuple(gpus)


def gpu_type(model: str) -> str:
    """The first part of a model's name that has a digit: `A100` of `NVIDIA A100-SXM4-40GB`; else `GPU`."""
    parts = model.replace("-", " ").split()
    return next((part for part in parts if any(letter.isdigit() for letter in part)), "GPU")


def free_gpus(gpus: Iterable[Gpu], type: str | None, count: int, busy: Collection[str]) -> tuple[str, ...]:
    """The UUIDs of so many GPUs of a type that no node has."""
    free = [gpu.uuid for gpu in gpus if gpu.type == type and gpu.uuid not in busy]
    return tuple(free[:count])


def gpu_variables(gpus: Sequence[Gpu], own: Sequence[str]) -> dict[str, str]:
    """Return the variables that show a node its own GPUs and hide the others; none on a machine without GPUs."""
    return {VISIBLE_DEVICES: ",".join(own)} if gpus else {}
