"""The bound of what a plain conversation can cost: what `cost_bound.py` says of it, without a look for what it has not.

Pure. Nearly every call is one: messages that are text, and no members but those that change neither input nor answers.
"""

from proxy.accounting.call_bound import OUTPUT_CAPS, PLAIN_MESSAGE
from proxy.accounting.cost_bounds.cost_bound import CHAT_PATH, LEAST_CAP, MESSAGES_PATH, Call, CostBound
from proxy.accounting.cost_bounds.dearest_rates import DearestRates

_PATHS = frozenset((CHAT_PATH, MESSAGES_PATH))
_MEMBERS = frozenset(
    (
        *("model", "messages", "system", "stream", "temperature", "top_p", "stop", "stop_sequences", "seed", "user"),
        *("presence_penalty", "frequency_penalty"),
        *OUTPUT_CAPS,
    )
)


def plain_bound(call: Call, rates: DearestRates, assumed_output: int) -> CostBound | None:
    """Return the bound, as `cost_bound` does; None if the call is anything else."""
    json = call.json
    path = call.facts.path
    if not _MEMBERS.issuperset(json) or path not in _PATHS or dict in map(type, json.values()):
        return None
    messages = json.get("messages")
    if type(messages) is not list or ("system" in json and type(json["system"]) is not str):
        return None
    for message in messages:
        if type(message) is not dict or message.keys() != PLAIN_MESSAGE or type(message["content"]) is not str:
            return None
    input_tokens = len(call.body)
    context = rates.max_input_tokens
    if context is not None:
        if path == MESSAGES_PATH:
            return None  # it may ask for a longer one
        if input_tokens > context:
            input_tokens = context
    if input_tokens > rates.longest_input:
        rates = rates.at(input_tokens)
    most = rates.max_output_tokens
    cap = call.output_cap
    if cap is None:
        cap = max(LEAST_CAP, assumed_output if most is None else most)
    elif most is not None and most < cap:
        cap = most
    answers = call.answers
    least = LEAST_CAP if cap > LEAST_CAP else cap
    fixed = rates.input * input_tokens + rates.per_call
    return CostBound(fixed, rates.output * answers, least, cap, input_tokens, answers)
