"""Runs llama.cpp's server with the random model, on a free port of the loopback interface."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.child_process import tie_to_parent
from tests.clients.llama_cpp.build import SERVER, TEMPLATES, TOOLS

MODEL = "random"
THINKS = "Qwen-QwQ-32B"
"""A model's chat template: thinks first, then text."""
MUST_CALL = "Cohere2MoE"
"""A model's chat template: thinks first, then calls a tool at once if it must. Its grammar has no free text."""
THINKING_TOKENS = 12
LISTENING = re.compile(r"listening on (http://\S+)")


def write_model(path: Path) -> None:
    """Write the model; the tools' Python has the library for it."""
    subprocess.run([TOOLS / "python", Path(__file__).with_name("random_model.py"), path], check=True, timeout=60)


@contextmanager
def llama_server(model: Path, template: str) -> Iterator[str]:
    """Run a server whose model uses this chat template, with a log beside the model. Yields its URL."""
    words = [SERVER, "--model", model, "--alias", MODEL, "--chat-template-file", TEMPLATES / f"{template}.jinja"]
    words += ["--host", "127.0.0.1", "--port", "0", "--offline", "--no-ui", "--seed", "1", "--threads", "1"]
    words += ["--parallel", "2", "--ctx-size", "16384", "--reasoning-budget", str(THINKING_TOKENS)]
    log = model.with_name(f"{template}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in words],
            stdout=output,
            stderr=output,
            preexec_fn=tie_to_parent(),  # noqa: PLW1509
        )
    try:
        yield _url(process, log)
    finally:
        process.kill()
        process.wait()


def _url(process: subprocess.Popen[bytes], log: Path, within_s: float = 30) -> str:
    """The URL that the server logs once it listens."""
    give_up_at = time.monotonic() + within_s
    while time.monotonic() < give_up_at and process.poll() is None:
        if (match := LISTENING.search(log.read_text(errors="replace"))) is not None:
            return match[1]
        time.sleep(0.05)
    raise AssertionError(f"llama-server did not start:\n{log.read_text(errors='replace')[-2000:]}")
