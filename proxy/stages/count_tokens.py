"""Answers a count of tokens, between steps 4 and 5, where the target has no path to ask.

Such an answer is never dispatched and leaves no event, but it counts as a request against limits.
"""

from proxy.answers import Answered
from proxy.exchange import Admitted, RequestContext
from proxy.parts import Dialects


class CountTokens:
    """Answers counts of tokens."""

    def __init__(self, dialects: Dialects) -> None:
        self._dialects = dialects

    def answer(self, context: RequestContext, admitted: Admitted) -> Answered | None:
        """The answer; None if the target is asked."""
        body = self._dialects.own_answer(context, admitted.route.endpoint.target)
        if body is None:
            return None
        context.dispatched = True
        return Answered(200, (("content-type", "application/json"),), body)
