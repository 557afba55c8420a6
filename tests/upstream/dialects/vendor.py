"""The scripted vendor: refuses a request as the real vendor of its dialect would, or plays the scenario it names."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.upstream.behaviours import answer_json
from tests.upstream.chat_completions import begin_events, end_events, send_event
from tests.upstream.dialects import chat, chat_checks, messages, messages_checks, responses, responses_checks
from tests.upstream.dialects.refusing import RefusedError
from tests.upstream.dialects.scenarios import FAILURES, SCENARIOS, Answer, Failure, Json, Prompt, respond
from tests.upstream.exchange import Exchange

ONCE = "-once"
MODEL = "the-vendors-own-name"
ACCESS_TOKEN = "ya29.minted-for-this-run"
INPUT_TOKENS = 123
"""Input tokens that the vendor of Messages counts in every request."""


class Dialect(NamedTuple):
    name: str
    path: str
    read: Callable[[Json], Prompt]
    check: Callable[[Json], None]
    whole: Callable[[Json, Prompt, Answer], Json]
    frames: Callable[[Json, Prompt, Answer], Iterator[bytes]]
    failed: Callable[[Failure], tuple[int, Json]]
    error: Callable[..., Json]


CHAT = Dialect(
    "chat", "/chat/completions", chat.read, chat_checks.check, chat.whole, chat.frames, chat.failed, chat.error
)
MESSAGES = Dialect(
    "messages",
    "/messages",
    messages.read,
    messages_checks.check,
    messages.whole,
    messages.frames,
    messages.failed,
    messages.error,
)
RESPONSES = Dialect(
    "responses",
    "/responses",
    responses.read,
    responses_checks.check,
    responses.whole,
    responses.frames,
    responses.failed,
    responses.error,
)
DIALECTS = (CHAT, MESSAGES, RESPONSES)


class Served(NamedTuple):
    """One request as the vendor understood it. `prompt` is None, and `problem` says why, if it was refused."""

    dialect: str
    status: int
    body: Json
    prompt: Prompt | None = None
    problem: str = ""


@dataclass
class ScriptedVendor:
    """A behaviour for `ScriptedUpstream`. The paths of dialects that it does not speak answer 404.

    Each answer is the same in all dialects, and bills the same tokens.
    """

    speaks: tuple[Dialect, ...] = DIALECTS
    needs_credential: bool = True
    served: list[Served] = field(default_factory=list)
    _refused_once: set[tuple[str, str]] = field(default_factory=set)

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.read_body()
        path = exchange.received.path
        dialect = next((dialect for dialect in self.speaks if path.endswith(dialect.path)), None)
        if dialect is not None:
            await self._answer(exchange, dialect)
        elif path.endswith("/token"):
            token = {"access_token": ACCESS_TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            await answer_json(200, token)(exchange)
        elif path.endswith("/messages/count_tokens") and MESSAGES in self.speaks:
            await answer_json(200, {"input_tokens": INPUT_TOKENS})(exchange)
        elif path.endswith("/models") and exchange.received.method == "GET":
            await answer_json(200, listing(exchange.received.header("anthropic-version") is not None))(exchange)
        else:
            await answer_json(404, {"detail": "Not Found"})(exchange)

    async def _answer(self, exchange: Exchange, dialect: Dialect) -> None:
        try:
            body = json.loads(exchange.received.body)
            if self.needs_credential:
                _check_credential(exchange)
            _check_headers(exchange, dialect, body)
            dialect.check(body)
            prompt = dialect.read(body)
        except RefusedError as problem:
            request_body = json.loads(exchange.received.body)
            self.served.append(Served(dialect.name, problem.status, request_body, problem=str(problem)))
            await answer_json(problem.status, dialect.error(str(problem), param=problem.param or None))(exchange)
            return
        answer = self._fails_once(prompt) or respond(prompt)
        if isinstance(answer, Failure):
            status, error = dialect.failed(answer)
            self.served.append(Served(dialect.name, status, body, prompt))
            await answer_json(status, error, _error_headers(status))(exchange)
            return
        self.served.append(Served(dialect.name, 200, body, prompt))
        if not prompt.stream:
            await answer_json(200, dialect.whole(body, prompt, answer), {"request-id": "req_Ab9"})(exchange)
            return
        await begin_events(exchange)
        for frame in dialect.frames(body, prompt, answer):
            await send_event(exchange, frame)
        await end_events(exchange)

    def _fails_once(self, prompt: Prompt) -> Failure | None:
        """The failure of the first call with this marker, for scenarios named `<failure>-once`."""
        marker = prompt.scenario
        if not marker[0].endswith(ONCE) or marker in self._refused_once:
            return None
        self._refused_once.add(marker)
        return FAILURES[marker[0].removesuffix(ONCE)]


def _check_credential(exchange: Exchange) -> None:
    if not (exchange.received.header("authorization") or exchange.received.header("x-api-key")):
        raise RefusedError("no credential", status=401)


def _check_headers(exchange: Exchange, dialect: Dialect, body: Json) -> None:
    received = exchange.received
    if dialect is MESSAGES and received.header("anthropic-version") is None:
        raise RefusedError("header is required", "anthropic-version")
    for name in messages_checks.BETA & body.keys() if dialect is MESSAGES else ():
        betas = (received.header("anthropic-beta") or "").split(",")
        if not any(beta.startswith(name.replace("_", "-")) for beta in betas):
            raise RefusedError("Extra inputs are not permitted", name)


def _error_headers(status: int) -> dict[str, str]:
    return {"request-id": "req_Ab9"} | ({"retry-after": "1", "retry-after-ms": "20"} if status == 429 else {})


def listing(for_messages: bool) -> Json:
    """The models, in the shape of either API."""
    if for_messages:
        born = "2026-01-01T00:00:00Z"
        model: Json = {"type": "model", "id": MODEL, "display_name": MODEL, "created_at": born, "lifecycle": "active"}
        return {"data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL}
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "vendor"}]}


def names() -> list[str]:
    """Every scenario and failure."""
    return [*SCENARIOS, *FAILURES]
