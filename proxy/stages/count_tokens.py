"""Between steps 4 and 5: answer a count of tokens here, where the target has nothing to ask.

Such an answer is never dispatched and leaves no event, but it counts as a request against limits.
"""

from typing import Protocol

from policy.endpoints import Target
from proxy.exchange import Admitted, Answered, Received, RequestContext


class Dialects(Protocol):
    """How each provider is asked."""

    def own_answer(self, request: Received, target: Target) -> bytes | None:
        """The JSON that answers the request without its target; None if the target is asked."""
        ...


class CountTokens:
    """Answers counts of tokens."""

    def __init__(self, dialects: Dialects) -> None:
        self._dialects = dialects

    def __call__(self, context: RequestContext, admitted: Admitted) -> Answered | None:
        body = self._dialects.own_answer(context, admitted.route.endpoint.target)
        if body is None:
            return None
        context.dispatched = True
        return Answered(200, (("content-type", "application/json"),), body)
