"""`python -W error -m tests.every_module`: imports every module of the product. A warning is an error.

Left out: what runs on a Ray cluster, because the product does not bring Ray, and what runs while Alembic migrates.
"""

import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("policy", "proxy", "control", "launcher", "commands", "trainer", "runtime")
LEFT_OUT = ("trainer/edges/ray/driver/", "control/edges/sql/migrations/env.py")


def modules() -> list[str]:
    """The names of all modules that do nothing when they are imported: no `__main__`."""
    files = (path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    paths = (path.with_suffix("") for path in files if not str(path).startswith(LEFT_OUT))
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__")


if __name__ == "__main__":
    names = modules()
    for name in names:
        importlib.import_module(name)
    print(f"{len(names)} modules imported")
