"""Writes what docs/compatibility.md says of model servers, from the table of those that tests script."""

from collections.abc import Iterator

from tests.upstream.model_servers import MODEL_SERVERS

TITLES = {"chat_completions": "Chat Completions", "messages": "Messages", "responses": "Responses"}


def servers_section() -> Iterator[str]:
    yield "## Model servers\n"
    yield "Targets of the provider `VENDOR_B_COMPATIBLE` or `PLATFORM`. Each server is scripted as it documents itself,"
    yield "and called in each dialect: in its newest release, and as an older one that lacks dialects"
    yield "(`tests/contracts/http/test_model_servers.py`). Callers of a dialect that it lacks are translated. State the"
    yield "target's [`dialects`](reference/inference.md#dialects) to end the guessing.\n"
    yield "| server | speaks | a path that it lacks |\n|---|---|---|"
    for server in MODEL_SERVERS:
        status, body = server.missing_path
        speaks = ", ".join(TITLES[name] for name in server.speaks)
        yield f"| {server.name} | {speaks} | {status} `{body.replace('{path}', '/v1/…')}` |"
    yield ""
