"""Uses of a target that its operator allows or forbids: state in the vendor's account, options with a price. Pure.

See docs/reference/management-api.md#targets.
"""

from policy.endpoints import Target
from proxy.http_rules.price_options import check_price_options
from proxy.http_rules.vendor_state import check_vendor_state, needs_a_close_look
from proxy.records.messages import Received


def concerns(request: Received, target: Target) -> bool:
    """Return whether `check` has anything to look at; nearly never. Costs an ordinary call about a microsecond."""
    return needs_a_close_look(request) or not target.passes_price_options


def check(request: Received, target: Target) -> None:
    """Refuse what `target` does not let callers ask. Takes time in proportion to the body.

    Raises `UntranslatableError`, or `MalformedRequestError` where two parsers could read the body differently.
    """
    if request.upload is not None and not target.passes_upstream_state:
        request.upload.forbid_state()
    if not target.passes_price_options:
        check_price_options(request)
    if request.upload is None and needs_a_close_look(request):
        check_vendor_state(request, target.passes_upstream_state)
