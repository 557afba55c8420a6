"""The clients, the providers, and how each client is started."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.upstream.dialects.vendor import CHAT, DIALECTS, MESSAGES, RESPONSES, Dialect

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / ".clients"
PYTHON_LOCKS = ROOT / "tests/clients/python"
TYPESCRIPT = ROOT / "tests/clients/typescript"
AGENTS = ROOT / "tests/clients/agents"
LLAMA_CPP_RESULTS = BUILT / "llama_cpp.json"
ORIGINAL_RESULTS = BUILT / "original.json"
TRUSS_RESULTS = BUILT / "truss.json"
NOWHERE = "http://127.0.0.1:9"
"""A proxy that does not exist: a client that leaves loopback fails."""
ENVIRONMENT = {
    "HTTP_PROXY": NOWHERE,
    "HTTPS_PROXY": NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "PYDANTIC_AI_NO_TELEMETRY": "1",
    "AI_SDK_LOG_WARNINGS": "false",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True, slots=True)
class Client:
    """One script. `environment` is a lock of Python packages, `typescript`, or `agents`."""

    name: str
    title: str
    dialect: Dialect
    environment: str
    script: str
    packages: tuple[str, ...]
    """The packages whose versions the page shows; the first is the client itself."""
    arguments: tuple[str, ...] = ()

    def command(self) -> list[str]:
        if self.environment == "typescript":
            return [str(node()), "--no-warnings", str(BUILT / "typescript" / f"{self.script}.ts"), *self.arguments]
        if self.environment == "agents":
            return [sys.executable, "-m", f"tests.clients.agents.{self.script}", *self.arguments]
        python = BUILT / self.environment / "bin/python"
        return [str(python), "-m", f"tests.clients.python.{self.script}", *self.arguments]

    def variables(self) -> Mapping[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(BUILT), "LANG": "C.UTF-8", **ENVIRONMENT}


@dataclass(frozen=True, slots=True)
class Provider:
    """A target of the slug. `speaks`: the dialects of its scripted vendor."""

    name: str
    provider: str
    speaks: tuple[Dialect, ...]
    note: str
    host: str = ""
    """The vendor's host, if its base URL is the customer's."""


PROVIDERS = (
    Provider("A", "VENDOR_A", (MESSAGES,), "speaks Messages"),
    Provider("B", "VENDOR_B", (CHAT, RESPONSES), "speaks Chat Completions and Responses"),
    Provider("C", "VENDOR_C", (CHAT,), "speaks Chat Completions"),
    Provider(
        "compatible, all", "VENDOR_B_COMPATIBLE", DIALECTS, "speaks all three dialects", "all.compatible.example.com"
    ),
    Provider(
        "compatible, chat",
        "VENDOR_B_COMPATIBLE",
        (CHAT,),
        "speaks Chat Completions only",
        "chat.compatible.example.com",
    ),
    Provider(
        "compatible, responses",
        "VENDOR_B_COMPATIBLE",
        (RESPONSES,),
        "speaks Responses only",
        "responses.compatible.example.com",
    ),
    Provider("platform", "PLATFORM", DIALECTS, "a model server that speaks all three dialects"),
    Provider("model API", "PLATFORM_MODEL_API", (CHAT,), "speaks Chat Completions only"),
)

OPENAI_CHAIN = ("langchain-openai", "langchain-core")
ANTHROPIC_CHAIN = ("langchain-anthropic", "langchain-core")


def _on_each(name: str, title: str, environment: str, packages: Mapping[Dialect, tuple[str, ...]]) -> Iterator[Client]:
    """A client whose script takes the dialect as its argument."""
    script = f"{name.replace('-', '_')}_client"
    for dialect, names in packages.items():
        yield Client(f"{name}-{dialect.name}", title, dialect, environment, script, names, (dialect.name,))


CLIENTS = (
    Client("openai-chat", "openai (Python)", CHAT, "current", "openai_chat", ("openai",)),
    Client("openai-responses", "openai (Python)", RESPONSES, "current", "openai_responses", ("openai",)),
    Client("anthropic", "anthropic (Python)", MESSAGES, "current", "anthropic_messages", ("anthropic",)),
    Client("openai-ts-chat", "openai (TypeScript)", CHAT, "typescript", "openai_chat", ("openai",)),
    Client("openai-ts-responses", "openai (TypeScript)", RESPONSES, "typescript", "openai_responses", ("openai",)),
    Client(
        "anthropic-ts", "anthropic (TypeScript)", MESSAGES, "typescript", "anthropic_messages", ("@anthropic-ai/sdk",)
    ),
    *(
        Client(
            f"vercel-{kind}", "Vercel AI SDK", dialect, "typescript", "vercel_ai", (f"@ai-sdk/{package}", "ai"), (kind,)
        )
        for kind, dialect, package in (
            ("chat", CHAT, "openai"),
            ("responses", RESPONSES, "openai"),
            ("messages", MESSAGES, "anthropic"),
            ("compatible", CHAT, "openai-compatible"),
        )
    ),
    *_on_each(
        "langchain", "LangChain", "current", {CHAT: OPENAI_CHAIN, RESPONSES: OPENAI_CHAIN, MESSAGES: ANTHROPIC_CHAIN}
    ),
    *_on_each("pydantic-ai", "Pydantic AI", "current", dict.fromkeys(DIALECTS, ("pydantic-ai-slim",))),
    *_on_each("openai-agents", "OpenAI Agents SDK", "current", dict.fromkeys((CHAT, RESPONSES), ("openai-agents",))),
    *_on_each("instructor", "Instructor", "instructor", dict.fromkeys(DIALECTS, ("instructor",))),
    *_on_each(
        "llama-index",
        "LlamaIndex",
        "openai2",
        {CHAT: ("llama-index-llms-openai-like",), MESSAGES: ("llama-index-llms-anthropic",)},
    ),
    *_on_each("litellm", "LiteLLM", "openai2", dict.fromkeys(DIALECTS, ("litellm",))),
    Client("claude-code", "Claude Code", MESSAGES, "agents", "claude_code", ("@anthropic-ai/claude-code",)),
    Client(
        "claude-sonnet-4-5",
        "Claude Code, for an older model",
        MESSAGES,
        "agents",
        "claude_code_budgets",
        ("@anthropic-ai/claude-code",),
    ),
    Client("codex", "Codex", RESPONSES, "agents", "codex", ("@openai/codex",)),
    Client("gpt-5.5", "Codex, for a model it knows", RESPONSES, "agents", "codex_patches", ("@openai/codex",)),
    Client("gpt-6-sol", "Codex, for a newer model", RESPONSES, "agents", "codex_programs", ("@openai/codex",)),
)


def node() -> Path:
    """The Node.js of a lock, or the machine's where the locks have none for it: Debian's may be too old."""
    locked = sorted(BUILT.glob("*/node_modules/node-linux-*/bin/node"))
    return locked[0] if locked else Path(shutil.which("node") or "node")
