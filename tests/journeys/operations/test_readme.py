"""A newcomer's first governed call: the commands of README.md and docs/deploying.md, run as they are written there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.journeys.conftest import started
from tests.journeys.product import Product, ended, ready_line, spawn
from tests.ports import own_port
from tests.upstream import ScriptedUpstream, in_thread

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
DEPLOYING = ROOT / "docs/deploying.md"
MOST_COMMANDS = 5


def blocks(document: Path = README, title: str = "Your first governed call") -> list[list[str]]:
    """The commands of a section, by code block. In README: the start, what leads to the call, what looks at it."""
    section = document.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [block.splitlines() for block in re.findall(r"```\n(.*?)```", section, re.DOTALL)]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that the commands use, in a directory of its own, because they make `.tollgate` where they run."""
    for name in ("Makefile", "deploy", "docs", "pyproject.toml", *(lock.name for lock in ROOT.glob("*.lock"))):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    return tmp_path


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """A newcomer's: no setting of ours but where OpenAI is, which here is a scripted upstream."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    with in_thread(ScriptedUpstream()) as upstream:
        yield ours | {"OPENAI_API_KEY": "sk-newcomer", "TOLLGATE_VENDOR_B_BASE_URL": upstream.url}


def output_of(script: str, checkout: Path, environment: dict[str, str], stdin: str = "") -> str:
    """Run it as a newcomer's shell does; it must end with status 0."""
    result = subprocess.run(
        ["bash", "-c", script],
        cwd=checkout, env=environment, input=stdin, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@contextmanager
def first_call(checkout: Path, environment: dict[str, str], *more_flags: str) -> Iterator[tuple[str, str, str]]:
    """Run the section's commands. Yields the proxy's URL, the customer's key, and the answer of the call."""
    start, others, _ = blocks()
    assert start == ["make up"]
    assert len(others) < MOST_COMMANDS
    ports = dict(zip(("proxy", "control", "admin"), (str(own_port()) for _ in range(3)), strict=True))
    flags = " ".join((*(f"--{name}-port {port}" for name, port in ports.items()), *more_flags))
    up = spawn((f"UP_FLAGS={flags}",), environment, checkout / "up.log", ("make", "-s", "-C", str(checkout), "up"))
    try:
        assert ready_line(up).startswith("ready "), (checkout / "up.log").read_text()
        script = "\n".join(("set -e", *others, 'echo; echo "$KEY"')).replace(":8080/", f":{ports['proxy']}/")
        *_, answer, key = output_of(script, checkout, environment).splitlines()
        yield f"http://127.0.0.1:{ports['proxy']}", key, answer
    finally:
        up.terminate()
        ended(up)


def test_first_call_takes_at_most_five_commands(checkout: Path, environment: dict[str, str]) -> None:
    with first_call(checkout, environment) as (_, _, text):
        answer = json.loads(text)
        assert answer["choices"][0]["message"]["content"] == "Hello there!"
        assert answer["model"] == "acme/assistant"
        looks = [(line, output_of(line, checkout, environment)) for line in blocks()[2]]
    expected = {"groups tree": "first-customer", "events list": "TIME", "plan": "Nothing to do", "doctor": "ok"}
    for line, output in looks:
        assert next(text for words, text in expected.items() if f"tollgate {words} " in f"{line} ") in output, line


def test_first_call_needs_no_key_of_a_vendor(checkout: Path) -> None:
    """The section's other way. Stock SDKs read what the example vendor answers in each dialect."""
    (flag,) = re.findall(r"`make up UP_FLAGS=(.*?)`, and set `OPENAI_API_KEY=example`", README.read_text())
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    with first_call(checkout, ours | {"OPENAI_API_KEY": "example"}, flag) as (url, key, text):
        words = json.loads(text)["choices"][0]["message"]["content"]
        assert words.endswith("You said: Say hello.")
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            messages: Any = [{"role": "user", "content": "Say hello."}]
            chunks = client.chat.completions.create(model="acme/assistant", messages=messages, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == words
            cut = client.chat.completions.create(model="acme/assistant", messages=messages, max_tokens=3)
            assert cut.choices[0].finish_reason == "length"
            assert cut.usage is not None
            assert cut.usage.completion_tokens == 3
            assert client.responses.create(model="acme/assistant", input="Say hello.").output_text == words
            with client.responses.stream(model="acme/assistant", input="Say hello.") as events:
                assert events.get_final_response().output_text == words
        with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as other:
            answered = other.messages.create(model="acme/assistant", max_tokens=99, messages=messages)
            assert answered.content[0].model_dump()["text"] == words


def test_deployment_ends_in_a_first_call(checkout: Path, environment: dict[str, str], tmp_path: Path) -> None:
    (lines,) = blocks(DEPLOYING, "The first call")
    product = Product(tmp_path / "data", workers=1, settings=environment)
    environment["PATH"] = f"{checkout}/.venv/bin:{environment['PATH']}"
    with started(product) as workspace:
        script = "\n".join(("set -e", *lines)).replace("http://127.0.0.1:8081", product.control)
        script = script.replace("http://127.0.0.1:8080", product.proxy)
        output = output_of(script, checkout, environment, stdin=f"{workspace.api_key}\n")
    answer = next(json.loads(line) for line in output.splitlines() if line.startswith("{"))
    assert answer["choices"][0]["message"]["content"] == "Hello there!"
    assert "first-customer" in output.partition("Hello there!")[2]
    assert workspace.api_key not in output


@pytest.mark.parametrize("target", ["up", "demo", "check-python"])
def test_running_the_product_installs_no_package_of_its_tests(target: str, tmp_path: Path) -> None:
    def plan(target: str) -> str:
        words = ["make", "-n", "-C", str(ROOT), target, f"VENV={tmp_path / 'none'}"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    assert "requirements-dev.lock" in plan("install")
    assert "-r requirements.lock" in plan(target)
    assert "requirements-dev.lock" not in plan(target)
    assert "requirements-ray.lock" not in plan(target)
