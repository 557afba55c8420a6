"""State in the vendor's account is found wherever a body names it, and not in what is the caller's own."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from proxy.errors import UntranslatableError
from proxy.http_rules.vendor_state import check_vendor_state, names_state, needs_a_close_look
from proxy.json_text.large_json import Outline
from proxy.json_text.sliced_json import parse_in_slices
from proxy.records.head_facts import HeadFacts, Purpose
from proxy.refusals import MalformedRequestError
from proxy.time_slices import at_once

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
FILE = {"type": "file", "file_id": "file_1"}


@dataclass
class Sent:
    """A received request, as far as the rule reads it."""

    facts: HeadFacts
    body: bytes
    json: dict[str, Any]
    outline: Outline | None = None


def sent(path: str, body: dict[str, Any] | bytes) -> Any:
    """A request as `receive` leaves it."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    parsed, outline = at_once(parse_in_slices(raw))
    return Sent(HeadFacts(None, path, Purpose.INFER, "", None), raw, parsed, outline)


def refusal(path: str, body: dict[str, Any] | bytes, passes_state: bool = False) -> str | None:
    """The field that is refused; None if the request passes."""
    request = sent(path, body)
    if not needs_a_close_look(request):
        return None
    try:
        check_vendor_state(request, passes_state)
    except UntranslatableError as error:
        return error.field
    return None


def turn(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def result(*content: Any) -> dict[str, Any]:
    return turn({"type": "tool_result", "tool_use_id": "t", "content": list(content)})


NAMED: list[tuple[str, dict[str, Any], str]] = [
    *((path, {"previous_response_id": "resp_1"}, "previous_response_id") for path in (CHAT, MESSAGES, RESPONSES)),
    (RESPONSES, {"conversation": "conv_1"}, "conversation"),
    (RESPONSES, {"conversation": {"id": "conv_1"}}, "conversation"),
    (RESPONSES, {"prompt": {"id": "pmpt_1", "version": "2"}}, "prompt"),
    (MESSAGES, {"container": "container_1"}, "container"),
    (MESSAGES, {"container": {"id": "c", "skills": []}}, "container"),
    (MESSAGES, {"thread": {"type": "continue", "id": "t"}}, "thread"),
    (RESPONSES, {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}, "tools.0.container"),
    (
        RESPONSES,
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file_1"]}}]},
        "tools.0.container.file_ids",
    ),
    (RESPONSES, {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, "tools.0.vector_store_ids"),
    (
        RESPONSES,
        {"tools": [{"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}}]},
        "tools.0.environment.container_id",
    ),
    (
        RESPONSES,
        {"tools": [{"type": "shell", "environment": {"skills": [{"type": "skill_reference", "skill_id": "s"}]}}]},
        "tools.0.environment.skills.0.skill_id",
    ),
    (
        RESPONSES,
        {"tools": [{"type": "image_generation", "input_image_mask": {"file_id": "file_1"}}]},
        "tools.0.input_image_mask.file_id",
    ),
    (
        RESPONSES,
        {"input": [{"type": "additional_tools", "tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}]},
        "input.0.tools.0.vector_store_ids",
    ),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0"),
    (RESPONSES, {"input": [{"role": "user", "content": "x"}, {"id": "msg_1"}]}, "input.1"),
    (RESPONSES, {"input": [{"id": "msg_1", "type": None, "role": None}]}, "input.0"),
    (RESPONSES, {"input": [{"type": "image_generation_call", "id": "ig_1"}]}, "input.0"),
    (RESPONSES, {"input": [{"type": "code_interpreter_call", "id": "c", "container_id": "x"}]}, "input.0.container_id"),
    *(
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": kind, "file_id": "file_1"}]}]},
            "input.0.content.0.file_id",
        )
        for kind in ("input_file", "input_image")
    ),
    (
        RESPONSES,
        {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "file_id": "f"}]}]},
        "input.0.output.0.file_id",
    ),
    (
        RESPONSES,
        {"input": [{"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "f"}}]},
        "input.0.output.file_id",
    ),
    (CHAT, turn({"type": "file", "file": {"file_id": "file_1"}}), "messages.0.content.0.file.file_id"),
    (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}, "messages.0.audio"),
    (CHAT, {"google": {"cached_content": "projects/p/cachedContents/1"}}, "google.cached_content"),
    (CHAT, {"extra_body": {"google": {"cachedContent": "x"}}}, "extra_body.google.cachedContent"),
    (MESSAGES, turn({"type": "document", "source": FILE}), "messages.0.content.0.source.file_id"),
    (MESSAGES, turn({"type": "image", "source": FILE}), "messages.0.content.0.source.file_id"),
    (MESSAGES, turn({"type": "container_upload", "file_id": "f"}), "messages.0.content.0.file_id"),
    (MESSAGES, result({"type": "image", "source": FILE}), "messages.0.content.0.content.0.source.file_id"),
    ("/v1/messages/count_tokens", turn({"type": "image", "source": FILE}), "messages.0.content.0.source.file_id"),
    ("/v1/images/edits", {"images": [{"file_id": "file_1"}], "prompt": "a cat"}, "images.0.file_id"),
]


@pytest.mark.parametrize(("path", "body", "field"), NAMED)
def test_state_in_the_vendors_account_is_refused_by_its_place(path: str, body: dict[str, Any], field: str) -> None:
    assert refusal(path, body) == field


@pytest.mark.parametrize(("path", "body", "_field"), NAMED)
def test_a_target_may_pass_state_in_the_vendors_account(path: str, body: dict[str, Any], _field: str) -> None:
    assert refusal(path, body, passes_state=True) is None


SCHEMA = {"type": "object", "properties": {"file_id": {"type": "string"}, "container": {"type": "string"}}}
OWN: list[tuple[str, dict[str, Any]]] = [
    *((path, {}) for path in (CHAT, MESSAGES, RESPONSES, "/v1/completions")),
    ("/v1/completions", {"prompt": "text"}),
    ("/v1/images/generations", {"prompt": "a cat", "background": "transparent"}),
    *((path, dict.fromkeys(("previous_response_id", "conversation", "container"))) for path in (MESSAGES, RESPONSES)),
    (RESPONSES, {"input": "the file_id of a container", "background": False, "prompt": None}),
    (RESPONSES, {"input": [{"role": "user", "content": "x", "id": "msg_1"}]}),
    (RESPONSES, {"input": [{"type": "message", "id": "msg_1", "role": "user", "content": []}]}),
    (RESPONSES, {"input": [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}]}),
    (RESPONSES, {"input": [{"type": "image_generation_call", "id": "ig_1", "result": "aGk="}]}),
    (RESPONSES, {"input": [{"type": "input_file", "file_id": None, "file_data": "x"}]}),
    (RESPONSES, {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": []}}]}),
    (RESPONSES, {"tools": [{"type": "function", "name": "read", "parameters": SCHEMA}], "metadata": {"file_id": "1"}}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    (RESPONSES, {"input": [{"type": "function_call", "arguments": '{"file_id": "f"}', "call_id": "c", "name": "r"}]}),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}),
    (CHAT, {"guided_json": SCHEMA, "metadata": {"container": "c"}}),
    (CHAT, {"audio": {"voice": "alloy", "format": "mp3"}, "modalities": ["text", "audio"]}),
    (CHAT, turn({"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}, {"type": "text", "text": "é"})),
    (CHAT, turn({"type": "text", "text": 'say "container" and file_id'})),
    (MESSAGES, {"tools": [{"name": "read", "input_schema": SCHEMA, "input_examples": [{"file_id": "f"}]}]}),
    (MESSAGES, {"thread": {"type": "create"}}),
    (
        MESSAGES,
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "input": {"file_id": "f"}}]}]},
    ),
    (MESSAGES, turn({"type": "image", "source": {"type": "base64", "data": "x", "media_type": "image/png"}})),
]


@pytest.mark.parametrize(("path", "body"), OWN)
def test_the_callers_own_data_passes(path: str, body: dict[str, Any]) -> None:
    assert refusal(path, {"model": "a/b", "messages": [], **body}) is None


def test_background_is_refused_whatever_the_target_passes() -> None:
    values: list[object] = [True, 1, "true", {}]
    for value in values:
        for passes_state in (False, True):
            expected = "background" if value else None
            assert refusal(RESPONSES, {"background": value}, passes_state) == expected
    assert refusal(RESPONSES, {"background": None}) is None


ESCAPED = [
    (CHAT, b'{"messages":[{"role":"user","content":[{"type":"file","file":{"%b":"f"}}]}]}', b"file_id"),
    (RESPONSES, b'{"tools":[{"type":"file_search","%b":["v"]}]}', b"vector_store_ids"),
    (RESPONSES, b'{"%b":"resp_1"}', b"previous_response_id"),
    (RESPONSES, b'{"%b":true}', b"background"),
    (RESPONSES, b'{"input":[{"type":"%b","id":"m"}]}', b"item_reference"),
    (MESSAGES, b'{"%b":"c"}', b"container"),
    (CHAT, b'{"messages":[{"role":"assistant","%b":{"id":"a"}}]}', b"audio"),
]


@pytest.mark.parametrize(("path", "body", "name"), ESCAPED)
def test_escapes_hide_no_name(path: str, body: bytes, name: bytes) -> None:
    for place in range(len(name)):
        for form in (b"\\u%04x", b"\\u%04X"):
            spelled = name[:place] + form % name[place] + name[place + 1 :]
            assert refusal(path, body % spelled) is not None
    assert refusal(path, body % b"".join(b"\\u%04x" % byte for byte in name)) is not None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RESPONSES, b'{"background":true,"background":false}'),
        (RESPONSES, b'{"previous_response_id":"r","previous_response_id":null}'),
        (RESPONSES, b'{"input":[{"type":"item_reference","id":"m","type":"message","role":"user","content":"x"}]}'),
        (CHAT, b'{"messages":[{"content":[{"file":{"file_id":"f","file_id":null}}]}]}'),
        (CHAT, b'{"messages":[{"content":[{"file":{"file_id":"f"}}],"content":"x"}]}'),
        (CHAT, b'{"messages":[{"content":[{"file":{"file\\u005fid":"f"}}],"content":"x"}]}'),
        (MESSAGES, b'{"messages":[{"content":[{"source":{"file_id":"f"},"source":{"type":"text"}}]}]}'),
    ],
)
def test_a_member_that_is_given_twice_hides_nothing(path: str, body: bytes) -> None:
    with pytest.raises(MalformedRequestError, match="is given twice in one object"):
        refusal(path, body)


@pytest.mark.parametrize("text", ["x" * 600_000, 'quoted "words" in it ' * 30_000, "ü" * 300_000])
def test_a_long_body_is_looked_at_as_well(text: str) -> None:
    body = turn({"type": "text", "text": text}, {"type": "file", "file": {"file_id": "f"}})
    assert refusal(CHAT, body) == "messages.0.content.1.file.file_id"
    assert refusal(CHAT, turn({"type": "text", "text": text})) is None


@pytest.mark.parametrize("name", ["file_id", "image[file_id]", "images[0][file_id]", "mask.FILE_ID", "file_ids[]"])
def test_a_forms_part_may_name_state(name: str) -> None:
    assert names_state(name)


@pytest.mark.parametrize("name", ["file", "image[]", "model", "prompt", "timestamp_granularities[]"])
def test_other_parts_of_a_form_name_none(name: str) -> None:
    assert not names_state(name)
