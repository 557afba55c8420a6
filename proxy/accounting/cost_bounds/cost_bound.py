"""The most that a call can cost in money, as a line: what is fixed, and what each token of its output cap adds.

Pure. A hard limit reserves it. It goes by the body as the caller sent it, as `call_bound.py` does, and by the prices
that may hold until the call's deadline. All amounts are exact, in parts of 10^-12 of the currency.

See docs/reference/money.md#spend-limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from policy.spend.spend_hash import UNITS_PER_PICO, picos_of
from proxy.accounting.call_bound import (
    COMPLETIONS_PATH,
    EDITS_PATH,
    FILE_TOKENS,
    TOOLS_TOKENS,
    WITHOUT_OUTPUT,
    most_input,
)
from proxy.accounting.cost_bounds.answer_counts import most_answers
from proxy.accounting.cost_bounds.bounded_counter import MostCounted
from proxy.accounting.cost_bounds.dearest_rates import DearestRates
from proxy.accounting.cost_bounds.plain_text import CHAT_PATH, MESSAGES_PATH
from proxy.accounting.cost_bounds.unseen_input import unseen_inputs
from proxy.accounting.cost_bounds.vendor_tools import RESPONSES_PATH, TOOL_MEMBERS, most_tool_calls, trained_tools
from proxy.json_text.large_json import Outline

LEAST_CAP = 16
"""The lowest cap that a limit lowers a call's output to. Some vendors take none below."""
_BETA_HEADER = "anthropic-beta"
_BETA_MEMBERS = frozenset(("anthropic_beta", "betas"))
_LONG_CONTEXT = "context-1m"
"""The beginning of the beta by which a caller of Messages gets a longer context."""
_CONVERSATIONS = frozenset((CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH))
"""Paths whose input is one context, which the model's own bound holds for."""
CAPPED_PATHS = _CONVERSATIONS | {COMPLETIONS_PATH}
"""Paths whose bodies may have an output cap."""
_RERANKS = frozenset(("/v1/rerank", "/v2/rerank"))
PARTIAL_PICTURE_TOKENS = 100
"""Output tokens of a picture that is shown before it is finished."""
MOST_PARTIAL_PICTURES = 3
_OFFERS = frozenset(("tools", "functions"))
_UNKNOWN = 1 << 60
"""Stands for the tokens of a part where the price does not tell: no body has as many bytes."""


class _Facts(Protocol):
    path: str


class _Head(Protocol):
    def header_values(self, name: str) -> Sequence[str]: ...


class Call(Protocol):
    """A call when it is admitted, as `RequestContext` has it."""

    body: bytes
    json: dict[str, Any]
    outline: Outline | None
    output_cap: int | None
    answers: int

    @property
    def facts(self) -> _Facts: ...

    @property
    def incoming(self) -> _Head: ...

    @property
    def upload(self) -> object | None:
        """A form is the body."""
        ...


@dataclass(slots=True)
class CostBound:
    """The cost of a call by its output cap, which may be anything from `least_cap` to `cap`; both are the same where no
    cap can be sent."""

    fixed: int
    per_cap_token: int
    least_cap: int
    cap: int
    input_tokens: int = 0
    """The most input tokens, which are in `fixed`."""
    answers: int = 1
    """The most answers, each up to the cap, which are in `per_cap_token`."""
    parts_per_pico: int = UNITS_PER_PICO
    """`fixed` and `per_cap_token` are in such parts of 10^-12."""

    least_picos: int = field(init=False, compare=False)
    """The smallest reservation, in 10^-12, rounded up."""
    whole_picos: int = field(init=False, compare=False)
    """The reservation where the limit has room: the same with all of the cap."""

    def __post_init__(self) -> None:
        self.least_picos = picos_of(self.fixed + self.per_cap_token * self.least_cap, self.parts_per_pico)
        self.whole_picos = picos_of(self.fixed + self.per_cap_token * self.cap, self.parts_per_pico)

    def cap_within(self, picos: int) -> int:
        """The largest cap with which the call costs at most so many 10^-12; the least one if there is none."""
        if not self.per_cap_token:
            return self.cap
        cap = (picos * self.parts_per_pico - self.fixed) // self.per_cap_token
        return max(self.least_cap, min(cap, self.cap))

    def most_counted(self, cap: int | None) -> MostCounted:
        """The tokens that the reservation pays for. `cap`: None if it is all of `cap`."""
        return MostCounted(self.input_tokens, (self.cap if cap is None else cap) * self.answers)


class Unbounded(NamedTuple):
    """The call has no known bound. `missing`: what would give it one, for the caller, in a sentence's second half."""

    missing: str


_NO_INPUT_BOUND = Unbounded(
    "the price of this slug has no max_input_tokens, which bounds pictures, sound, files, URLs, stored state "
    "and the results of tools that the vendor runs; set it, or send text alone"
)
_NO_OUTPUT_BOUND = Unbounded(
    "the price of this slug has no max_output_tokens, and a call to this path has no cap on its output; set it"
)


def cost_bound(
    call: Call, rates: DearestRates, assumed_output: int, most_tokens: int | None = None, *, is_plain: bool = False
) -> CostBound | Unbounded:
    """Return the most that a call can cost. `assumed_output`: the cap of a call without one, if the price tells none.

    `is_plain`: it is a plain conversation (`plain_text.py`), which saves the close look. `most_tokens`: what
    `most_input` said of the body, if it is known: it saves a part of it. Not for counts of tokens, which cost nothing.
    """
    path = call.facts.path
    answers = call.answers
    least = LEAST_CAP
    tool_calls = beyond_cap = 0
    context = rates.max_input_tokens
    if context is not None and path == MESSAGES_PATH and _asks_for_long_context(call):
        context = max(context, FILE_TOKENS)
    if is_plain:
        input_tokens = len(call.body)
        if context is not None and input_tokens > context:
            input_tokens = context
    else:
        content = _content(call, context, most_tokens)
        if isinstance(content, Unbounded):
            return content
        input_tokens, answers, tool_calls, beyond_cap = content
        least += _thinking_budget(call.json)
    if input_tokens > rates.longest_input:
        rates = rates.at(input_tokens)
    fixed = rates.input_parts * input_tokens + rates.call_parts
    per_cap_token = rates.output_parts * answers
    most = rates.max_output_tokens
    parts = rates.parts_per_pico
    if not is_plain:
        fixed += rates.tool_call_parts * tool_calls + per_cap_token * beyond_cap
        if path in WITHOUT_OUTPUT:
            return CostBound(fixed, 0, 0, 0, input_tokens, parts_per_pico=parts)
        if path not in CAPPED_PATHS or call.upload is not None:
            if most is None:
                return _NO_OUTPUT_BOUND
            return CostBound(fixed, per_cap_token, most, most, input_tokens, answers, parts)
    cap = call.output_cap
    if cap is None:
        cap = max(least, assumed_output if most is None else most)
    elif most is not None and most < cap:
        cap = most
    return CostBound(fixed, per_cap_token, least if least < cap else cap, cap, input_tokens, answers, parts)


class _Content(NamedTuple):
    """The most of a call that is not a plain conversation: its input, its answers, calls of tools that the vendor runs,
    and output tokens of an answer that its cap does not hold for."""

    input_tokens: int
    answers: int
    tool_calls: int
    beyond_cap: int


def _content(call: Call, context: int | None, most_tokens: int | None) -> _Content | Unbounded:
    """Look closely at a call. `context`: the most input tokens that the model takes; None if no price tells."""
    path = call.facts.path
    tool_calls = 0
    answers = most_answers(call.json, path, call.answers)
    if isinstance(answers, str):
        return Unbounded(f"{answers}: nothing bounds what the call generates; say it by a member of the body itself")
    if path == RESPONSES_PATH or not TOOL_MEMBERS.isdisjoint(call.json):
        most_calls = most_tool_calls(call.json, path)
        if isinstance(most_calls, str):
            return Unbounded(f"{most_calls}: nothing bounds the calls of tools that the vendor runs")
        tool_calls = most_calls * answers
    unseen = unseen_inputs(call.json, path) if call.upload is None else 1
    if not unseen and not tool_calls:
        input_tokens = _input_of_body(call, context, most_tokens)
    elif context is None:
        input_tokens = _UNKNOWN
    elif path in _CONVERSATIONS or call.upload is not None:
        input_tokens = context * (tool_calls + 1)  # each result of a tool is read in a new turn
    else:
        input_tokens = context * max(unseen, answers) + len(call.body)
    if input_tokens >= _UNKNOWN:
        return _NO_INPUT_BOUND
    return _Content(input_tokens, answers, tool_calls, _output_beyond_cap(call))


def _input_of_body(call: Call, most: int | None, tokens: int | None) -> int:
    """The most input tokens of a body; `_UNKNOWN` or more if parts of it are bounded by the model alone.

    `tokens`: with the figures of `call_bound.py` for its parts. If they come to its bytes alone it has none.
    """
    size = len(call.body)
    if tokens is None or tokens != (size if _OFFERS.isdisjoint(call.json) else size + TOOLS_TOKENS):
        tokens = most_input(call.json, size, call.outline, _UNKNOWN << 1 if most is None else most)
    if "tools" in call.json:
        tokens += trained_tools(call.json) * TOOLS_TOKENS
    path = call.facts.path
    if path in _RERANKS:  # the query is read with each document
        return tokens * max(1, _documents(call.json))
    return most if most is not None and tokens > most and path in _CONVERSATIONS else tokens


def _asks_for_long_context(call: Call) -> bool:
    """Return whether the call may have a longer context than the model's usual one, which the price tells."""
    if not call.incoming.header_values(_BETA_HEADER) and _BETA_MEMBERS.isdisjoint(call.json):
        return False
    betas = [*call.incoming.header_values(_BETA_HEADER), *map(str, map(call.json.get, _BETA_MEMBERS))]
    return any(_LONG_CONTEXT in beta.lower() for beta in betas)


def _output_beyond_cap(call: Call) -> int:
    """The most output tokens of an answer that its cap does not hold for: what was predicted and is not said."""
    tokens = len(call.body) if call.json.get("prediction") else 0
    if call.upload is not None:
        return MOST_PARTIAL_PICTURES * PARTIAL_PICTURE_TOKENS if call.facts.path == EDITS_PATH else 0
    pictures = call.json.get("partial_images")
    if pictures:
        number = pictures if type(pictures) is int and pictures > 0 else MOST_PARTIAL_PICTURES
        tokens += number * PARTIAL_PICTURE_TOKENS
    return tokens


def _documents(json: dict[str, Any]) -> int:
    """The most documents of a reranking, by whatever names: of lists in the body, and in its objects, the longest."""
    lists = [value for value in json.values() if type(value) is list]
    for value in json.values():
        if type(value) is dict:
            lists += [inner for inner in value.values() if type(inner) is list]
    return max(map(len, lists), default=1)


def _thinking_budget(json: dict[str, Any]) -> int:
    """The largest budget of thinking tokens, by the names of any vendor."""
    thinking = json.get("thinking")
    reasoning = json.get("reasoning")
    budgets = [json.get("thinking_budget")]
    budgets.append(thinking.get("budget_tokens") if type(thinking) is dict else None)
    budgets.append(reasoning.get("max_tokens") if type(reasoning) is dict else None)
    return max((budget for budget in budgets if type(budget) is int and budget > 0), default=0)
