"""A management API in memory for commands: answers by method and path, and remembers what was asked."""

from collections.abc import Callable, Mapping
from typing import Any

from commands.errors import RefusedError

Answer = Any | Callable[[Any, Mapping[str, Any]], Any]


class FakeApi:
    """`answers` by `METHOD /path`: a value, or a function of body and query. Anything else is a 404.

    What a list holds is also there by its id.
    """

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers = dict(answers or {})
        self.requests: list[tuple[str, str, Any, dict[str, Any]]] = []

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        parameters = {name: value for name, value in query.items() if value is not None}
        self.requests.append((method, path, body, parameters))
        answer = self.answers.get(f"{method} {path}")
        if answer is None and (answer := self._listed(method, path)) is None:
            raise RefusedError(f"404: {path} is not there", 404, "NOT_FOUND")
        return answer(body, parameters) if callable(answer) else answer

    def _listed(self, method: str, path: str) -> Any:
        resource, _, id = path.rpartition("/")
        listing = self.answers.get(f"{method} {resource}")
        items = listing["items"] if method == "GET" and isinstance(listing, dict) and "items" in listing else ()
        return next((item for item in items if isinstance(item, dict) and item.get("id") == id), None)

    def bodies(self, method: str) -> list[Any]:
        return [body for verb, _, body, _ in self.requests if verb == method]


def page(*items: Any, cursor: str | None = None) -> dict[str, Any]:
    """One page of a list."""
    return {"items": list(items), "pagination": {"has_more": cursor is not None, "cursor": cursor}}
