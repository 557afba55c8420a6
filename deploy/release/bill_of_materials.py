"""The software bill of materials (CycloneDX 1.6, JSON): what `requirements.lock` installed beside this interpreter.

Names, versions, licences and requirements are those that the installed packages state. `python bill_of_materials.py
LOCK` prints it: the image makes its own from its environment. Standard library only, so that it runs there.
"""

import json
import os
import platform
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

_LOCKED = re.compile(r"^([A-Za-z0-9][\w.-]*)==", re.MULTILINE)
_REQUIRED = re.compile(r"^[A-Za-z0-9][\w.-]*")
_NAMESPACE = uuid.UUID("6f0f2c46-0b3d-5c0e-9d5a-2f1f6c1d6a11")
"""The namespace of serial numbers: the same contents have the same number, so that two builds are equal."""
PRODUCT = "tollgate"


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_names(lock: str) -> set[str]:
    """The canonical names of the packages in the text of a lock file."""
    return {canonical(name) for name in _LOCKED.findall(lock)}


def bill(installed: Iterable[Distribution], lock: str, epoch: int) -> dict[str, Any]:
    """The document. Only what `lock` names is listed, and the product itself is its subject.

    Raises `LookupError` if the product is not installed.
    """
    by_name = {canonical(one.name): one for one in installed}
    if PRODUCT not in by_name:
        raise LookupError(f"{PRODUCT} is not installed beside this interpreter")
    listed = {name: by_name[name] for name in sorted(locked_names(lock) & by_name.keys()) if name != PRODUCT}
    every = {PRODUCT: by_name[PRODUCT], **listed}
    components = [_component(name, one, "library") for name, one in listed.items()]
    graph = [{"ref": _purl(name, one), "dependsOn": sorted(_needs(one, every))} for name, one in every.items()]
    content = {"components": components, "dependencies": graph}
    serial = uuid.uuid5(_NAMESPACE, json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": _component(PRODUCT, by_name[PRODUCT], "application"),
            "properties": [
                {"name": "python", "value": ".".join(platform.python_version_tuple()[:2])},
                {"name": "platform", "value": f"{platform.system()} {platform.machine()}".lower()},
            ],
        },
        **content,
    }


def _component(name: str, one: Distribution, type: str) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": type,
        "bom-ref": _purl(name, one),
        "name": name,
        "version": one.version,
        "purl": _purl(name, one),
    }
    return component | ({"licenses": licences} if (licences := _licences(one)) else {})


def _purl(name: str, one: Distribution) -> str:
    return f"pkg:pypi/{name}@{one.version}"


def _licences(one: Distribution) -> list[dict[str, Any]]:
    """The SPDX expression, else the short text, else the classifiers: whichever the package states first."""

    def stated(field: str) -> list[str]:
        return one.metadata.get_all(field) or []

    if expressions := stated("License-Expression"):
        return [{"expression": expressions[0]}]
    texts = [text.strip() for text in stated("License") if "\n" not in text.strip() and 0 < len(text.strip()) < 80]
    classifiers = [text.split(" :: ")[-1] for text in stated("Classifier") if text.startswith("License ::")]
    return [{"license": {"name": text}} for text in texts or classifiers]


def _needs(one: Distribution, every: dict[str, Distribution]) -> Iterator[str]:
    """Return those that the package may require, extras included, and that are installed here."""
    names = {canonical(match.group()) for text in one.requires or () if (match := _REQUIRED.match(text))}
    yield from (_purl(name, every[name]) for name in names if name in every)


def text_of(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


if __name__ == "__main__":
    when = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    sys.stdout.write(text_of(bill(distributions(), Path(sys.argv[1]).read_text(), when)))
