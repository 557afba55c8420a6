"""The Lua scripts of the queue. Each is `queue.lua` and one file; the tables of moves and endings come from Python.

Reads the scripts; otherwise no I/O.
"""

from collections.abc import Iterable, Mapping
from importlib import resources

from proxy.async_requests import endings
from proxy.async_requests.queues import DELIVERY_TRIES, KEPT_S, LEASE_S, STANDING_S
from proxy.async_requests.requests import RequestError
from proxy.async_requests.states import OUTCOMES, TRANSITIONS

UNSUBMITTED_S = 60.0
"""The time for which pieces of an input stay while their request is not queued."""
GAP_S = 10.0
"""An unusual time between two sweeps of a workspace with open requests: it is swept each second."""
_CLOCK = "redis.call('TIME')"
_SKEW = "base - ahead"
_NAMES = (
    *("put", "submit", "state", "cancel", "start", "renew", "store", "finish", "fail_deployment", "standing", "sweep"),
    *("next_delivery", "renew_deliveries", "end_delivery", "answer_lost", "give_back", "overview"),
)
_OF_THE_INDEX = ("add_workspace", "forget_workspace")
_ENDINGS: Mapping[str, RequestError] = {
    "never_ready": endings.NEVER_READY,
    "never_free": endings.NEVER_FREE,
    "out_of_time": endings.OUT_OF_TIME,
    "worker_lost": endings.WORKER_LOST,
    "deployment_gone": endings.DEPLOYMENT_GONE,
}


def load_scripts(clock: str = _CLOCK, skew: str = _SKEW) -> Mapping[str, str]:
    """The text of each script by its name.

    `clock`, `skew`: Lua expressions of the time and of how much longer entries are idle for Redis; tests replace them.
    """
    folder = resources.files("proxy.edges.redis.async_queue")

    def read(name: str) -> str:
        return folder.joinpath(name + ".lua").read_text("utf-8").replace(_CLOCK, clock)

    head = _constants() + read("queue").replace(f"local SKEW = {_SKEW}", f"local SKEW = {skew}")
    whole = {name: f"{head}\nreturn answer(function()\n{read(name)}\nend)\n" for name in _NAMES}
    return {**whole, **{name: read(name) for name in _OF_THE_INDEX}}


def _constants() -> str:
    moves: dict[str, dict[str, str]] = {}
    for (phase, event), following in TRANSITIONS.items():
        moves.setdefault(phase.value, {})[event.value] = _text(following.value)
    periods = {"LEASE": LEASE_S, "STANDING": STANDING_S, "KEPT": KEPT_S, "UNSUBMITTED": UNSUBMITTED_S, "GAP": GAP_S}
    tables = {
        "MOVES": _table((phase, _table(by_event.items())) for phase, by_event in moves.items()),
        "OUTCOMES": _table((event.value, _text(status.value)) for event, status in OUTCOMES.items()),
        "ENDINGS": _table((name, f"{{{_text(end.code)}, {_text(end.message)}}}") for name, end in _ENDINGS.items()),
        "TRIES": str(DELIVERY_TRIES),
        **{name: str(int(seconds * 1000)) for name, seconds in periods.items()},
    }
    return "".join(f"local {name} = {value}\n" for name, value in tables.items())


def _table(items: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"[{_text(name)}] = {value}" for name, value in items) + "}"


def _text(text: str) -> str:
    """A Lua string. Ours have neither quotes nor backslashes nor line breaks."""
    return f"'{text}'"
