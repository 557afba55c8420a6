"""A call in no vendor's dialect: turns of parts, tools, and settings.

Values. Strings may hold placeholders of a long body (`json_text/large_json.py`): readers and writers may cut and join
them, but must not encode them again. Members that are encoded again are listed in `json_slots.py`.
"""

from dataclasses import dataclass, field
from typing import Any

from proxy.errors import UntranslatableError

Json = dict[str, Any]

SYSTEM = "system"
DEVELOPER = "developer"
USER = "user"
ASSISTANT = "assistant"
"""The roles of a turn. Only Chat Completions and Responses know `developer`; elsewhere it is `system`."""

URL = "url"
BASE64 = "base64"
PLAIN_TEXT = "text"
"""The kinds of a source."""

AUTO = "auto"
NONE = "none"
REQUIRED = "required"
NAMED = "named"
"""The kinds of a tool choice."""

JSON_OBJECT = "json_object"
JSON_SCHEMA = "json_schema"
"""The kinds of an output format. Plain text is None."""


@dataclass(slots=True, kw_only=True)
class ContentPart:
    """A piece of a turn or an answer."""

    field: str = field(default="", compare=False)
    """Path in the caller's body, for the error message; "" in an answer."""
    cache: Json | None = None
    """The part's `cache_control`: a hint about cost, dropped where the target has nothing like it."""


@dataclass(slots=True)
class Text(ContentPart):
    text: str


@dataclass(slots=True)
class Refusal(ContentPart):
    """The model's refusal to answer, as text."""

    text: str


@dataclass(slots=True)
class Source:
    """The place of an image or a document: a URL, base64 data, or (documents only) plain text."""

    kind: str
    data: str
    media_type: str = ""
    """Empty for a URL."""


@dataclass(slots=True)
class Image(ContentPart):
    source: Source
    detail: str | None = None
    """`low`, `high` or `auto`. Messages has nothing like it: it reads each image in full."""


@dataclass(slots=True)
class Document(ContentPart):
    source: Source
    title: str | None = None
    context: str | None = None


@dataclass(slots=True)
class Audio(ContentPart):
    data: str
    """Base64."""
    format: str


@dataclass(slots=True)
class Reasoning(ContentPart):
    """Reasoning of the model. `native` is what its vendor wants back in the next turn, in the vendor's own form."""

    text: str
    dialect: str = ""
    """The dialect that `native` belongs to; no other vendor can verify it."""
    native: Json | None = None
    """The vendor's own block or item, signature included. None if there is nothing to return."""
    sealed: str = ""
    """The text that `native` is sealed in, in a caller's request, until it is opened."""


@dataclass(slots=True)
class ToolCall(ContentPart):
    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it: it may be invalid. The plain input, for a custom tool."""
    custom: bool = False
    extra: Json | None = None
    """`extra_content` of Chat Completions: a vendor's opaque member that the next turn must return."""


@dataclass(slots=True)
class ToolResult(ContentPart):
    """The result of a tool call, in a user's turn."""

    call_id: str
    parts: list[Text | Image | Document]
    is_error: bool = False
    custom: bool = False


AnswerPart = Text | Refusal | Reasoning | ToolCall
TurnPart = AnswerPart | Image | Document | Audio | ToolResult


@dataclass(slots=True)
class ConversationTurn:
    """One message of the caller's. Writers merge or split turns as their dialect needs it."""

    role: str
    parts: list[TurnPart]
    name: str | None = None
    """The participant's name in Chat Completions."""
    field: str = field(default="", compare=False)


@dataclass(slots=True)
class Tool:
    """A function; or, if `custom` is set, a tool that takes plain text."""

    name: str
    description: str | None = None
    schema: Json | None = None
    """The JSON schema of its arguments; None for a tool without any."""
    strict: bool | None = None
    custom: Json | None = None
    """The format of a custom tool's input: `{"type": "text"}`, or a grammar as OpenAI writes it."""
    namespaced: tuple[str, str] | None = None
    """The tool's namespace and name there (Responses); `name` joins the two for targets without namespaces."""
    cache: Json | None = None
    field: str = field(default="", compare=False)


@dataclass(slots=True)
class ToolChoice:
    kind: str
    name: str = ""
    """The name of the tool that must be called, for `NAMED`."""


@dataclass(slots=True)
class OutputFormat:
    """Structured output."""

    kind: str
    schema: Json | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


@dataclass(slots=True)
class ReasoningSettings:
    """Settings of reasoning: how much to think, and whether to show it."""

    enabled: bool | None = None
    """False: do not think. None: as the model does by default."""
    effort: str | None = None
    """`minimal`, `low`, `medium`, `high`, `xhigh` or `max`."""
    budget_tokens: int | None = None
    visible: bool | None = None
    """True if the answer shows a summary. None: the dialect's default."""


@dataclass(slots=True)
class Sampling:
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: list[str] = field(default_factory=list)
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Json | None = None
    answers: int | None = None
    """`n`."""
    logprobs: bool = False
    top_logprobs: int | None = None


@dataclass(slots=True)
class Request:
    """A call. A setting that the caller left out, or sent with its neutral value, is None."""

    turns: list[ConversationTurn]
    stream: bool = False
    include_usage: bool = True
    """True if the caller of a stream wants its usage; only Chat Completions callers can say no."""
    max_output_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    tools: list[Tool] = field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    output_format: OutputFormat | None = None
    reasoning: ReasoningSettings | None = None
    verbosity: str | None = None
    """`low` or `high`; `medium` is the neutral value."""
    user: str | None = None
    """The end user's stable id."""
    service_tier: str | None = None
    """`flex`, `priority` …, as OpenAI writes it; None for the default tiers of either vendor."""
    cache: Json | None = None
    """`cache_control` of the whole request."""
    cache_key: str | None = None
    """`prompt_cache_key`: a hint."""
    fields: dict[str, str] = field(default_factory=dict, compare=False)
    """The caller's member for each setting that it did send: by the names above (`max_output_tokens`, `top_k`)."""
    echo: Json = field(default_factory=dict, compare=False)
    """Members of the caller's body that its dialect repeats in the answer (Responses)."""
    reasoning_off: str = ""
    """Set by a writer that had to turn thinking off: why, in a few words. The caller is told in a header."""
    left_out: list[str] = field(default_factory=list, compare=False)
    """Dropped members that stock agents always send and only their own dialect has: `tools.8 (web_search)`.

    A header tells the caller. Everything else that cannot be kept is refused.
    """

    tool_names: dict[str, str] = field(default_factory=dict, compare=False)
    """The caller's names of tools whose names the target would not take, by the names that it was given."""

    def field_of(self, setting: str) -> str:
        return self.fields.get(setting, setting)

    def refuse(self, setting: str, reason: str = "the target of this slug has nothing like it") -> UntranslatableError:
        """The error for a setting that the target cannot keep, naming the caller's member."""
        return UntranslatableError(self.field_of(setting), reason)
