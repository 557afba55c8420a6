"""`make clients` runs it: `truss` against a running product; docs/compatibility.md shows the results.

`python -m tests.clients.original.truss_client.run` exits with 1 if something is not as `expected.py` says.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.clients.catalogue import BUILT, ENVIRONMENT, ROOT, TRUSS_RESULTS
from tests.clients.original.expected import label, surprises
from tests.clients.original.run import running
from tests.clients.original.truss_client.expected import OPEN, REFUSED
from tests.clients.original.truss_client.scene import HUB_TOKEN, MODEL, MODEL_FILES
from tests.weights_sources import serving_weights

PYTHON = BUILT / "truss/bin/python"
GUIDE = ROOT / "docs/original-clients.md"
PARTS = ("functions", "push", "commands")
TIMEOUT_S = 900


def settled(directory: Path, control: str, api_key: str) -> dict[str, str]:
    """Set a user's home directory up as the guide says. Return the environment of his commands."""
    recipe = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert recipe is not None
    modules = directory / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(recipe[1])
    remote = {"remote_provider": "baseten", "remote_url": control, "api_key": api_key}
    lines = [f"{name} = {value}" for name, value in remote.items()]
    (directory / ".trussrc").write_text("\n".join(["[tollgate]", *lines, ""]))
    return {
        **{"PATH": "/usr/bin:/bin", "HOME": str(directory), "LANG": "C.UTF-8", **ENVIRONMENT},
        "PYTHONPATH": f"{modules}:{ROOT}",
        "TRUSS_NO_UPDATE_CHECK": "1",
        "COLUMNS": "250",
    }


def outcomes(directory: Path, parts: tuple[str, ...] = PARTS) -> list[dict[str, Any]]:
    """The outcome of each function and command of these parts."""
    work = directory / "work"
    work.mkdir()
    with serving_weights(directory) as sources, running(directory, sources.settings) as (product, api_key, replica):
        sources.token = HUB_TOKEN
        sources.models[MODEL] = MODEL_FILES
        place = (product.control, product.proxy, api_key, replica)
        script = subprocess.run(
            [str(PYTHON), "-m", "tests.clients.original.truss_client.script", *place, *parts],
            cwd=work,
            env=settled(directory, product.control, api_key),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        (directory / "script.log").write_text(script.stderr)
        assert script.returncode == 0, f"{script.stderr}\n{product.log_tail()}"
        if script.stderr:
            print(script.stderr, file=sys.stderr)
    return [json.loads(line) for line in script.stdout.splitlines() if line.startswith("{")]


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        results = outcomes(Path(directory))
    TRUSS_RESULTS.write_text(json.dumps(results, indent=1))
    lines = surprises(results, OPEN, REFUSED)
    labels = {label(one) for one in results}
    lines += [f"{name}: no such function or command" for name in (*OPEN, *REFUSED) if name not in labels]
    print("\n".join(lines))
    counts = [one["outcome"] for one in results]
    print(", ".join(f"{counts.count(outcome)} {outcome}" for outcome in dict.fromkeys(counts)))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
