"""Builds the bench's own C programs with gcc, each from one file beside this one, into `.bench/compiled/`."""

import shutil
import subprocess
from pathlib import Path

from bench.programs.processes import BenchError

HOME = Path(".bench/compiled")
_FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")


def build(name: str) -> Path:
    """The program of `name`.c, compiled again if its source is newer. Raises `BenchError` where that fails."""
    source = Path(__file__).with_name(f"{name}.c")
    program = HOME / name
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program.absolute()
    if shutil.which("gcc") is None:
        raise BenchError("gcc is not installed; on Debian and Ubuntu: apt-get install gcc libc6-dev")
    HOME.mkdir(parents=True, exist_ok=True)
    argv = ["gcc", *_FLAGS, "-o", str(program), str(source)]
    process = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if process.returncode:
        raise BenchError(f"{source} could not be compiled: {process.stderr.strip()[-500:]}")
    return program.absolute()
