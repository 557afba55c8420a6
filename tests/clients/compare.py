"""Compares what a client saw through Tollgate with what it saw from a vendor of its own dialect."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from policy.billing import Tokens
from tests.upstream.dialects.scenarios import FAILURES, Answer, respond
from tests.upstream.dialects.vendor import Served

Verdict = Literal["passes", "translated", "refused", "FAILS"]
OVERLOADED = (503, 529)
"""Statuses of an overloaded vendor. Each vendor has its own; every client treats them alike."""
REFUSED = re.compile(r"""(?:^|error['"]: ?)["']([\w.]+): """)
"""Tollgate's own error, which names the field first; some clients keep only the member `error`."""
DEFAULT_MAX_TOKENS = 4096
BY_DELIVERY = ("stream breaks",)
"""Cases without a usage report: the bill is what was delivered, which the unit tests check."""


@dataclass(slots=True)
class Run:
    """One case of one client: its outcome, and what the vendor served meanwhile."""

    outcome: dict[str, Any]
    served: list[Served] = field(default_factory=list)
    billed: list[Tokens] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return sum(served.status == 200 for served in self.served)


@dataclass(slots=True)
class Cell:
    verdict: Verdict
    detail: str = ""
    """The refused field, or what differs."""


class Known(NamedTuple):
    """A difference that the target's dialect makes unavoidable. `faults`: matches every fault of such a cell."""

    case: str
    faults: re.Pattern[str]
    note: str


KNOWN = (
    Known(
        "stop sequence",
        re.compile("stop_reason: 'end_turn'|stop_sequence: 'None'"),
        "`stop_reason` is `end_turn`: Chat Completions does not tell a matched stop sequence from the answer's end.",
    ),
    Known(
        "refusal",
        re.compile("content: |kinds: "),
        "The refusal's text is a text block too; Messages vendors send none.",
    ),
    Known(
        "reasoning in a tool loop",
        re.compile("usage.*(reasoning|textTokens)"),
        "The client returns no reasoning, so the call after the tools is made without thinking.",
    ),
    Known(
        "redacted reasoning",
        re.compile("content: "),
        "This vendor redacts nothing: Chat Completions has nothing like it.",
    ),
)


def cell(case: str, dialect: str, direct: Run, through: Run) -> Cell:
    if (refusal := _refusal(through)) is not None:
        return Cell("refused", refusal)
    faults = list(_faults(case, direct, through))
    translated = any(served.dialect != dialect for served in through.served)
    for difference in KNOWN if translated else ():
        if case.startswith(difference.case) and all(difference.faults.search(fault) for fault in faults) and faults:
            return Cell("translated", difference.note)
    if faults:
        return Cell("FAILS", "; ".join(faults))
    return Cell("translated" if translated else "passes")


def _refusal(run: Run) -> str | None:
    """The field that Tollgate itself refused; None if it did not."""
    error = run.outcome.get("error")
    if error is None or error["status"] != 400 or any(served.status == 400 for served in run.served):
        return None
    match = REFUSED.search(error["body"]) or REFUSED.search(error["text"])
    return match[1] if match else f"{error['text']} {error['body']}"[:200]


def _faults(case: str, direct: Run, through: Run) -> Any:
    problems = [served.problem for served in through.served if served.problem]
    direct_problems = [served.problem for served in direct.served if served.problem]
    if problems and not direct_problems:
        yield f"the vendor refuses what Tollgate sends: {problems[0]}"
        return
    if "error" in through.outcome or "error" in direct.outcome:
        yield from _error_faults(case, direct.outcome.get("error"), through.outcome.get("error"))
    else:
        yield from differences(direct.outcome["result"], through.outcome["result"])
    statuses = [[_status(served.status) for served in run.served] for run in (direct, through)]
    if statuses[0] != statuses[1]:
        yield f"calls: {statuses[0]} directly, {statuses[1]} through Tollgate"
    bills = [billed_by(served) for served in direct.served if served.status == 200]
    if case not in BY_DELIVERY and bills != through.billed:
        yield f"billed {[tuple(tokens) for tokens in through.billed]} for {[tuple(tokens) for tokens in bills]}"


def _error_faults(case: str, direct: dict[str, Any] | None, through: dict[str, Any] | None) -> Any:
    if direct is None or through is None:
        yield f"{_named(through)} instead of {_named(direct)}"
        return
    overloaded = direct["status"] in OVERLOADED and through["status"] in OVERLOADED
    for name in ("class", "status"):
        if direct[name] != through[name] and not overloaded and (case not in BY_DELIVERY or name == "class"):
            yield f"{name} {through[name]} instead of {direct[name]}: {through['text'][:200]}"
    for failure in FAILURES.values():
        if failure.message in direct["text"] and failure.message not in through["text"]:
            yield f"the error's text is {through['text'][:200]!r}"


def _named(error: dict[str, Any] | None) -> str:
    return "an answer" if error is None else f"{error['class']} {error['status']}: {error['text'][:300]}"


def _status(status: Any) -> Any:
    return "overloaded" if status in OVERLOADED else status


def billed_by(served: Served) -> Tokens:
    """The tokens that the vendor reports for this request."""
    assert served.prompt is not None
    answer = respond(served.prompt)
    assert isinstance(answer, Answer)
    return answer.tokens


def differences(direct: Any, through: Any, path: str = "") -> list[str]:
    """The first few differences between two JSON values, with their paths."""
    if isinstance(direct, dict) and isinstance(through, dict):
        names = [*direct, *(name for name in through if name not in direct)]
        faults = [
            one
            for name in names
            for one in differences(direct.get(name), through.get(name), f"{path}.{name}".strip("."))
        ]
        return faults[:3]
    if isinstance(direct, list) and isinstance(through, list) and len(direct) == len(through):
        pairs = enumerate(zip(direct, through, strict=True))
        return [one for n, (a, b) in pairs for one in differences(a, b, f"{path}.{n}".strip("."))][:3]
    if path.endswith("json.limits.max_tokens") and direct is None and through == DEFAULT_MAX_TOKENS:
        return []  # Messages requires a cap
    return (
        []
        if direct == through
        else [f"{path or 'the result'}: {str(through)[:300]!r} instead of {str(direct)[:300]!r}"]
    )
