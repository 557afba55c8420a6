"""Step 3: find the slug's target, if the group may call it (404).

`GET /v1/models` and `GET /v1/models/{slug}` apply the same rule to each slug. A slug that does not exist and a slug
that the group may not call get the same answer, so that nobody can probe for the slugs of others.
"""

from urllib.parse import unquote

from policy.snapshot import EndpointRow, KeyRow
from proxy.answers import Answered
from proxy.directory_values import Forwarding, Identified, SlugRoute
from proxy.exchange import RequestContext
from proxy.http_rules import model_listing
from proxy.http_rules.headers import forwarded_values
from proxy.http_rules.vendor_state import needs_a_close_look
from proxy.parts import Dialects, Directory
from proxy.records.messages import MODELS_PATH
from proxy.refusals import BadCredentialError, NoSuchSlugError

MAX_SLUG_CHARS = 257
"""The longest slug. An error message repeats no more of what the caller sent."""


class Route:
    """Finds where a slug leads for the caller."""

    def __init__(self, directory: Directory, dialects: Dialects) -> None:
        self._directory = directory
        self._dialects = dialects

    def find(self, context: RequestContext, identified: Identified) -> None:
        """Set the call's route, and what was kept of calls like it."""
        shape = self._directory.shape(context.facts, context.slug)
        if shape is None or shape.identified is not identified:
            context.route = self._slug_route(identified, context.slug)
            forwarding = self._forwarding(context)
        else:
            context.route = shape.route
            context.shape = shape
            forwarding = shape.forwarding
        if forwarding is not None and (self._dialects.has_sealed(context) or needs_a_close_look(context)):
            forwarding = None
        context.forwarding = forwarding

    def _forwarding(self, context: RequestContext) -> Forwarding | None:
        """Find what was kept of another caller's call."""
        facts = context.facts
        if facts.forwarded is None:
            facts.forwarded = forwarded_values(context.incoming)
        return self._directory.forwarding(facts.forwarded, context.slug) if facts.forwarded else None

    def list_slugs(self, context: RequestContext, identified: Identified) -> Answered:
        """List the slugs that this key may call, or show the one that the path names."""
        key = identified.key
        path = context.facts.path
        incoming = context.incoming
        if path != MODELS_PATH:
            slug = unquote(path.removeprefix(MODELS_PATH)).removeprefix("/")
            self._slug_route(identified, slug)
            return model_listing.one_model_answer(incoming, slug)
        if key.group_id is None:
            raise BadCredentialError
        slugs = self._directory.slugs(key.group_id)
        callable_slugs = (slug for slug in slugs if identified.covers(slug) and self._endpoint(key, slug) is not None)
        return model_listing.list_models_answer(incoming, callable_slugs)

    def _slug_route(self, identified: Identified, slug: str) -> SlugRoute:
        group = identified.group
        if group is None:
            raise BadCredentialError  # slug paths are for federated keys, and those have a group
        route = self._directory.slug_route(group, identified.key, slug) if identified.covers(slug) else None
        if route is None and self._directory.group(group.id) is None:
            raise BadCredentialError  # the group was deleted while the body came, and its keys with it
        if route is None or route.endpoint.workspace_id != identified.key.workspace_id:
            raise NoSuchSlugError(f"The model {slug[:MAX_SLUG_CHARS]!r} does not exist, or this key may not call it")
        return route

    def _endpoint(self, key: KeyRow, slug: str) -> EndpointRow | None:
        endpoint = self._directory.endpoint(slug)
        return endpoint if endpoint is not None and endpoint.workspace_id == key.workspace_id else None
