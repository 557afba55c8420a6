"""Scripts of the vendors' answers, told in no dialect.

A scenario is chosen by a marker in a user's text, `[[scenario:parallel-tools]]`, which survives every translation. The
next turn of a tool loop is recognised by its tool results.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

from policy.billing import Tokens

Json = dict[str, Any]
Stop = Literal["end", "tools", "length", "stop", "refusal"]
SCRIPT = "[[scenario:scripted]]"
MARKER = re.compile(r"\[\[scenario:([a-z0-9-]+)(?::([\w.-]+))?\]\]")

PLAIN = "Grüße! This is the “vendor”, with a \\ and a 👋.\nAnd a second line."
THOUGHT = "The caller asks for a number. Six times seven is forty-two."
CITIES = ("Paris", "Rome")
WEATHER: Json = {"city": "Paris", "celsius": 21}
REFUSAL = "I cannot help with that."
STOP_SEQUENCE = "END"
ATTACHED = "(see the attachment below)"
"""Text that Tollgate writes for a result that has none."""


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str

    @property
    def signature(self) -> str:
        return signed(self.text)


@dataclass(frozen=True, slots=True)
class RedactedThinking:
    """Reasoning that the vendor hides. `data` goes back to it as it came."""

    data: str = "redacted-" + hashlib.sha256(b"redacted").hexdigest()


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: Json
    """The input of the call; `{"input": text}` for a custom tool."""
    custom: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its media type and digest, or its URL."""

    content: str


@dataclass(frozen=True, slots=True)
class Document:
    """A document: its media type and digest, its text, or its URL."""

    content: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    id: str
    content: tuple[Text | Image | Document, ...]
    is_error: bool = False


Part = Text | Refusal | Thinking | RedactedThinking | ToolCall | Image | Document | ToolResult


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str | None
    schema: Json
    strict: bool
    custom: bool = False
    """True for a tool that takes plain text."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request, read from its dialect. `parts` are (role, part); the roles are system, user, assistant and tool."""

    model: str
    stream: bool
    parts: tuple[tuple[str, Part], ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of a tool."""
    parallel: bool = True
    schema: Json | None = None
    """The JSON schema that the answer must follow."""
    thinks: bool = False
    limits: Json = field(default_factory=dict)
    """`max_tokens`, `temperature`, `top_p` and `stop`, where the request has them."""

    @property
    def scenario(self) -> tuple[str, str]:
        """The name and the argument of the last marker."""
        texts = [part.text for role, part in self.parts if role == "user" and isinstance(part, Text)]
        matches = [match for text in texts for match in MARKER.finditer(text)]
        return (matches[-1][1], matches[-1][2] or "") if matches else ("plain", "")

    @property
    def answer_id(self) -> str:
        """The part of an answer's id behind its prefix; each turn of a conversation has another."""
        return f"{len(self.parts)}Ab9"

    @property
    def results(self) -> list[ToolResult]:
        """The tool results that end the conversation, with what is attached to them.

        Chat Completions has only text in a result; images and documents follow in a message of the user's.
        """
        results: list[ToolResult] = []
        attached: list[Text | Image | Document] = []
        for role, part in reversed(self.parts):
            if isinstance(part, Image | Document) and role == "user" and not results:
                attached.insert(0, part)
            elif isinstance(part, ToolResult):
                results.insert(0, part)
            else:
                break
        if results and attached:
            contents = [part for part in results[-1].content if part != Text(ATTACHED)]
            results[-1] = replace(results[-1], content=(*contents, *attached))
        return results


@dataclass(frozen=True, slots=True)
class Answer:
    parts: tuple[Part, ...]
    stop: Stop
    tokens: Tokens
    thinking_tokens: int = 0
    cut_by: str = ""
    """An error that ends the stream after the parts: a key of `FAILURES`."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, and the status that each dialect's vendor gives it."""

    message: str
    messages_status: int
    messages_type: str
    openai_status: int
    openai_type: str
    openai_code: str | None = None


FAILURES = {
    "bad-request": Failure("This value is not allowed.", 400, "invalid_request_error", 400, "invalid_request_error"),
    "too-long": Failure(
        "The prompt is too long.", 400, "invalid_request_error", 400, "invalid_request_error", "context_length_exceeded"
    ),
    "unknown-model": Failure(
        "This model does not exist.", 404, "not_found_error", 404, "invalid_request_error", "model_not_found"
    ),
    "rate-limited": Failure(
        "Too many requests.", 429, "rate_limit_error", 429, "requests", "rate_limit_exceeded"
    ),
    "server-error": Failure("The server failed.", 500, "api_error", 500, "server_error"),
    "overloaded": Failure("Overloaded.", 529, "overloaded_error", 503, "server_error", "server_is_overloaded"),
}  # fmt: skip


def signed(text: str) -> str:
    """The vendor's signature below a thought. A vendor accepts only what it signed."""
    return "sig-" + hashlib.sha256(f"the vendor's key:{text}".encode()).hexdigest()


def respond(prompt: Prompt) -> Answer | Failure:
    """Return every vendor's answer to this prompt. KeyError for an unknown scenario."""
    name, _ = prompt.scenario
    if name in FAILURES:
        return FAILURES[name]
    answer = SCENARIOS[name](prompt)
    if isinstance(answer, Failure):
        return answer
    thoughts = answer.parts if prompt.thinks else _without_thoughts(answer.parts)
    number = list(SCENARIOS).index(name)
    billed = Tokens(input=100 + number, output=20 + 2 * number, cached_input=10 + 3 * number)
    return Answer(thoughts, answer.stop, billed, 7 if prompt.thinks else 0, answer.cut_by)


def _without_thoughts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(part for part in parts if not isinstance(part, Thinking | RedactedThinking))


def _says(*parts: Part, stop: Stop = "end") -> Answer:
    return Answer(parts, stop, Tokens())


def _plain(_: Prompt) -> Answer:
    return _says(Text(PLAIN))


def _one_tool(prompt: Prompt) -> Answer:
    return _calls(prompt, CITIES[:1])


def _parallel_tools(prompt: Prompt) -> Answer:
    return _calls(prompt, CITIES)


def _thinking_tools(prompt: Prompt) -> Answer:
    answer = _calls(prompt, CITIES[:1])
    return answer if prompt.results else Answer((Thinking(THOUGHT), *answer.parts), answer.stop, answer.tokens)


def _calls(prompt: Prompt, cities: tuple[str, ...]) -> Answer:
    """Call the first tool for each city; once there are results, repeat them."""
    if prompt.results or not prompt.tools or prompt.tool_choice == "none":
        return _says(Text(f"The tools said: {json.dumps([understood(part) for part in prompt.results])}"))
    name = prompt.tool_choice if prompt.tool_choice not in ("auto", "required") else prompt.tools[0].name
    cities_called = cities if prompt.parallel else cities[:1]
    calls = [ToolCall(f"{number + 1}Ab9", name, {"city": city}) for number, city in enumerate(cities_called)]
    return _says(*calls, stop="tools")


def _text_and_tool(prompt: Prompt) -> Answer:
    answer = _one_tool(prompt)
    return answer if prompt.results else Answer((Text("Let me look."), *answer.parts), answer.stop, answer.tokens)


def _structured(prompt: Prompt) -> Answer:
    """JSON text if the request has a schema for its answer, otherwise a call of the tool that it offers for that."""
    forced = prompt.tool_choice not in ("auto", "none")
    if not prompt.tools or prompt.results or (prompt.schema is not None and not forced):
        return _says(Text(json.dumps(WEATHER)))
    name = prompt.tool_choice if prompt.tool_choice not in ("auto", "required") else prompt.tools[-1].name
    return _says(ToolCall("1Ab9", name, WEATHER), stop="tools")


def _thinking(_: Prompt) -> Answer:
    return _says(Thinking(THOUGHT), Text("42"))


def _redacted(_: Prompt) -> Answer:
    return _says(RedactedThinking(), Thinking(THOUGHT), Text("42"))


def _refuses(_: Prompt) -> Answer:
    return _says(Refusal(REFUSAL), stop="refusal")


def _too_long(_: Prompt) -> Answer:
    return _says(Text("one two three four"), stop="length")


def _stops(prompt: Prompt) -> Answer:
    """Stop at the sequence, if the request has it."""
    if STOP_SEQUENCE in prompt.limits.get("stop", ()):
        return _says(Text("before "), stop="stop")
    return _says(Text(f"before {STOP_SEQUENCE} after"))


def _echo(prompt: Prompt) -> Answer:
    """Answer with all that was understood of the request, as JSON text: a lost member is a difference in the answer."""
    return _says(Text(json.dumps(what_was_understood(prompt), sort_keys=True)))


def _cut(_: Prompt) -> Answer:
    return Answer((Text("This much, then"),), "end", Tokens(), cut_by="overloaded")


def _empty(_: Prompt) -> Answer:
    return _says()


def _after_a_retry(_: Prompt) -> Answer:
    """`vendor.py` refuses the first call of each argument: `[[scenario:rate-limited-once:7]]`."""
    return _says(Text("Thank you for waiting."))


def _scripted(prompt: Prompt) -> Answer | Failure:
    """Follow the script in the user's text: JSON behind the marker, a list of turns.

    A turn is `{"expects", "says", "calls"}`: texts that must be in the conversation by then, a text, and a list of
    names and arguments. The next turn begins when all its calls have results. A name may have a prefix in the offer.
    """
    texts = [part.text for role, part in prompt.parts if role == "user" and isinstance(part, Text)]
    script = next((text for text in reversed(texts) if SCRIPT in text), SCRIPT)
    turns = json.loads(script.partition(SCRIPT)[2].strip() or '[{"expects": [], "says": "Done.", "calls": []}]')
    answered = sum(isinstance(part, ToolResult) for _, part in prompt.parts)
    begins = list(accumulate((len(turn["calls"]) for turn in turns), initial=0))
    number = begins.index(answered) if answered in begins else 0
    turn = turns[number] | ({} if answered in begins else {"expects": [f"not {answered} results"]})
    conversation = json.dumps(
        [understood(part) for _, part in prompt.parts if part != Text(script)], ensure_ascii=False
    )
    if missing_texts := [text for text in turn["expects"] if text not in conversation]:
        return Failure(
            f"The conversation lacks {missing_texts}.", 400, "invalid_request_error", 400, "invalid_request_error"
        )
    offered = [next(tool for tool in prompt.tools if tool.name.endswith(name)) for name, _ in turn["calls"]]
    calls = [
        ToolCall(f"{number}x{n}Ab9", tool.name, arguments, tool.custom)
        for n, (tool, (_, arguments)) in enumerate(zip(offered, turn["calls"], strict=True))
    ]
    return _says(Thinking(f"{THOUGHT} ({number})"), Text(turn["says"]), *calls, stop="tools" if calls else "end")


SCENARIOS: dict[str, Callable[[Prompt], Answer | Failure]] = {
    "plain": _plain,
    "tools": _one_tool,
    "parallel-tools": _parallel_tools,
    "text-and-tool": _text_and_tool,
    "structured": _structured,
    "thinking": _thinking,
    "thinking-tools": _thinking_tools,
    "redacted-thinking": _redacted,
    "refusal": _refuses,
    "max-tokens": _too_long,
    "stop-sequence": _stops,
    "echo": _echo,
    "cut": _cut,
    "empty": _empty,
    "rate-limited-once": _after_a_retry,
    "server-error-once": _after_a_retry,
    "overloaded-once": _after_a_retry,
    "scripted": _scripted,
}


def what_was_understood(prompt: Prompt) -> Json:
    """The prompt as JSON, without what dialects name differently: the ids of tool calls are numbered."""
    numbers: dict[str, str] = {}
    for _, part in prompt.parts:
        if isinstance(part, ToolCall):
            numbers.setdefault(part.id, f"call {len(numbers) + 1}")
    return {
        "parts": [[role, understood(part, numbers)] for role, part in _joined(prompt.parts)],
        "tools": [[tool.name, tool.description, tool.schema, tool.strict] for tool in prompt.tools],
        "tool_choice": prompt.tool_choice if prompt.tools else "auto",
        "parallel": prompt.parallel,
        "schema": prompt.schema,
        "thinks": prompt.thinks,
        "limits": prompt.limits,
    }


def _joined(parts: tuple[tuple[str, Part], ...]) -> list[tuple[str, Part]]:
    """Adjacent texts of one role joined by a newline, as dialects do whose content is one text."""
    joined: list[tuple[str, Part]] = []
    for role, part in parts:
        last = joined[-1] if joined else None
        if last is not None and last[0] == role and isinstance(part, Text) and isinstance(last[1], Text):
            joined[-1] = role, Text(f"{last[1].text}\n{part.text}")
        else:
            joined.append((role, part))
    return joined


def understood(part: Part, numbers: dict[str, str] | None = None) -> Any:
    """One part as JSON."""
    match part:
        case Text(text) | Refusal(text):
            return text
        case Thinking(text):
            return {"thinking": text}
        case RedactedThinking(data):
            return {"redacted_thinking": data}
        case Image(content):
            return {"image": content}
        case Document(content):
            return {"document": content}
        case ToolCall(id, name, arguments):
            return {"call": name, "arguments": arguments, "id": (numbers or {}).get(id)}
        case ToolResult(id, content, is_error):
            contents = [understood(item) for item in content]
            if is_error and contents:  # a dialect without a member for it says so in the text
                contents[0] = f"Error: {contents[0]}"
            return {"result": contents, "id": (numbers or {}).get(id)}


def digest(media_type: str, data: bytes) -> str:
    """Return the name of an image or a document in a prompt."""
    return f"{media_type} {hashlib.sha256(data).hexdigest()[:16]}"


def pieces(text: str) -> list[str]:
    """A text as a vendor streams it: word by word."""
    return re.findall(r"\S+\s*|\s+", text)


def json_pieces(value: Json) -> list[str]:
    """A tool call's arguments as a vendor streams them: cut anywhere."""
    text = json.dumps(value)
    return [text[start : start + 7] for start in range(0, len(text), 7)]
