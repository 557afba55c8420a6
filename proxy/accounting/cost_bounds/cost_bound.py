"""The most that a call can cost in money, as a line: what is fixed, and what each token of its output cap adds.

Pure. A hard limit reserves it. It goes by the body as the caller sent it, as `call_bound.py` does, and by the prices
that may hold until the call's deadline. All amounts are exact, in units of 10^-22 of the currency.

See docs/reference/money.md#spend-limits.
"""

from typing import Any, NamedTuple, Protocol

from policy.spend.spend_hash import picos_of, units_of_picos
from proxy.accounting.call_bound import COMPLETIONS_PATH, TOOLS_TOKENS, WITHOUT_OUTPUT, most_input
from proxy.accounting.cost_bounds.dearest_rates import DearestRates
from proxy.accounting.cost_bounds.vendor_tools import RESPONSES_PATH, TOOL_MEMBERS, is_reference, most_tool_calls, trained_tools
from proxy.json_text.large_json import Outline

LEAST_CAP = 16
"""The lowest cap that a limit lowers a call's output to. Some vendors take none below."""
_CONVERSATIONS = frozenset(("/v1/chat/completions", "/v1/messages", RESPONSES_PATH))
"""Paths whose input is one context, which the model's own bound holds for."""
CAPPED_PATHS = _CONVERSATIONS | {COMPLETIONS_PATH}
"""Paths whose bodies may have an output cap."""
_RERANKS = frozenset(("/v1/rerank", "/v2/rerank"))
_STATE = frozenset(("previous_response_id", "conversation", "container", "thread", "cached_content", "cachedContent"))
_HOLDING_STATE = frozenset(("extra_body", "google"))
"""Members that name input which is not in the body, and those that may hold such."""
_STATE_MEMBERS = _STATE | _HOLDING_STATE
_OFFERS = frozenset(("tools", "functions"))
_LOOKED_AT = _STATE_MEMBERS | TOOL_MEMBERS
_UNKNOWN = 1 << 60
"""Stands for the tokens of a part where the price does not tell: no body has as many bytes."""


class _Facts(Protocol):
    path: str


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
    def upload(self) -> object | None:
        """A form is the body."""
        ...


class CostBound(NamedTuple):
    """The cost of a call by its output cap, which may be anything from `least_cap` to `cap`; both are the same where no
    cap can be sent."""

    fixed: int
    per_cap_token: int
    least_cap: int
    cap: int
    input_tokens: int = 0
    """The most input tokens, which are in `fixed`."""

    @property
    def least_picos(self) -> int:
        """The smallest reservation, in 10^-12, rounded up."""
        return picos_of(self.fixed + self.per_cap_token * self.least_cap)

    @property
    def whole_picos(self) -> int:
        """The reservation where the limit has room: the same with all of the cap."""
        return picos_of(self.fixed + self.per_cap_token * self.cap)

    def cap_within(self, picos: int) -> int:
        """The largest cap with which the call costs at most so many 10^-12; the least one if there is none."""
        if not self.per_cap_token:
            return self.cap
        cap = (units_of_picos(picos) - self.fixed) // self.per_cap_token
        return max(self.least_cap, min(cap, self.cap))


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
    call: Call, rates: DearestRates, assumed_output: int, most_tokens: int | None = None
) -> CostBound | Unbounded:
    """Return the most that a call can cost. `assumed_output`: the cap of a call without one, if the price tells none.

    `most_tokens`: what `most_input` said of the body, if it is known: it saves the look at a body of text. Not for
    counts of tokens, which cost nothing.
    """
    path = call.facts.path
    tool_calls = 0
    has_state = False
    if path == RESPONSES_PATH or not _LOOKED_AT.isdisjoint(call.json):
        most_calls = most_tool_calls(call.json, path)
        if isinstance(most_calls, str):
            return Unbounded(f"{most_calls}: nothing bounds the calls of tools that the vendor runs")
        tool_calls = most_calls * call.answers
        has_state = _names_state(call)
    if call.upload is None and not has_state and not tool_calls:
        input_tokens = _input_of_body(call, rates.max_input_tokens, most_tokens)
    elif rates.max_input_tokens is None:
        input_tokens = _UNKNOWN
    else:
        input_tokens = rates.max_input_tokens * (tool_calls + 1)  # each result of a tool is read in a new turn
    if input_tokens >= _UNKNOWN:
        return _NO_INPUT_BOUND
    rates = rates.at(input_tokens)
    fixed = rates.input * input_tokens + rates.per_call + rates.per_server_tool_call * tool_calls
    if path in WITHOUT_OUTPUT:
        return CostBound(fixed, 0, 0, 0, input_tokens)
    most = rates.max_output_tokens
    per_cap_token = rates.output * call.answers
    if path not in CAPPED_PATHS or call.upload is not None:
        return _NO_OUTPUT_BOUND if most is None else CostBound(fixed, per_cap_token, most, most, input_tokens)
    least = LEAST_CAP
    if "thinking" in call.json:
        least += _thinking_budget(call.json["thinking"])
    cap = call.output_cap
    if cap is None:
        cap = max(least, assumed_output if most is None else most)
    elif most is not None and most < cap:
        cap = most
    return CostBound(fixed, per_cap_token, least if least < cap else cap, cap, input_tokens)


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
        documents = call.json.get("documents")
        count = len(documents) if type(documents) is list else 1
        return tokens * count
    return most if most is not None and tokens > most and path in _CONVERSATIONS else tokens


def _names_state(call: Call) -> bool:
    """Return whether the call has input that the vendor has stored."""
    json = call.json
    if not _STATE_MEMBERS.isdisjoint(json) and any(json.get(name) for name in _STATE_MEMBERS):
        return True
    if call.facts.path != RESPONSES_PATH:
        return False
    items = json.get("input")
    return type(json.get("prompt")) is dict or (type(items) is list and any(map(is_reference, items)))


def _thinking_budget(thinking: object) -> int:
    budget = thinking.get("budget_tokens") if type(thinking) is dict else None
    return budget if type(budget) is int and budget > 0 else 0
