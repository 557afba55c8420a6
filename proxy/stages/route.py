"""Step 3: slug → target; may this group call it (404), can the target be asked this (400).

Also what `GET /v1/models` and `GET /v1/models/{slug}` tell: the same rule, asked per slug.
A slug that does not exist and one the group may not call answer alike, so nobody can probe for others' slugs.
"""

from typing import Any, Protocol
from urllib.parse import unquote

from policy.endpoints import Target
from policy.groups import Group
from policy.snapshot import EndpointRow, KeyRow
from proxy.exchange import MODELS_PATH, Answered, Identified, Received, Routed, SlugRoute
from proxy.http_rules import model_listing
from proxy.refusals import BadCredentialError, NoSuchSlugError

MAX_SLUG_CHARS = 257
"""No slug is longer; what a caller sent instead is echoed no further."""


class Directory(Protocol):
    """The replica of policy. Every method raises `PolicyUnavailableError` when there is none to serve from."""

    def endpoint(self, slug: str) -> EndpointRow | None: ...

    def slug_route(self, group_id: str, slug: str) -> SlugRoute | None:
        """None when there is no such slug, or the group may not call it."""
        ...

    def slugs(self, group_id: str) -> tuple[str, ...]: ...


class Dialects(Protocol):
    """How each provider wants to be asked."""

    def translate_request(self, request: Received, target: Target) -> dict[str, Any] | None:
        """The request in the target's dialect, where that is another than the caller's.

        Raises `UntranslatableError`: here, since an admitted call counts whatever comes of it.
        """
        ...


class Route:
    """Finds where a slug leads for this caller."""

    def __init__(self, directory: Directory, dialects: Dialects) -> None:
        self._directory = directory
        self._dialects = dialects

    def __call__(self, identified: Identified, received: Received) -> Routed:
        group = _group(identified)
        route = self._slug_route(identified, received.slug)
        endpoint, plan = route.endpoint, route.plan
        translation = self._dialects.translate_request(received, endpoint.target)
        return Routed(identified, received, endpoint, group.external_entity_id, plan, translation)

    def models(self, identified: Identified) -> Answered:
        """The slugs that this key may call, or the one that the path names."""
        key, arrived = identified.key, identified.arrived
        if arrived.path != MODELS_PATH:
            slug = unquote(arrived.path.removeprefix(MODELS_PATH)).removeprefix("/")
            self._slug_route(identified, slug)
            return model_listing.one_model_answer(arrived.incoming, slug)
        slugs = (slug for slug in self._directory.slugs(_group(identified).id) if self._endpoint(key, slug) is not None)
        return model_listing.list_models_answer(arrived.incoming, slugs)

    def _slug_route(self, identified: Identified, slug: str) -> SlugRoute:
        route = self._directory.slug_route(_group(identified).id, slug)
        if route is None or route.endpoint.workspace_id != identified.key.workspace_id:
            raise NoSuchSlugError(f"The model {slug[:MAX_SLUG_CHARS]!r} does not exist, or this key may not call it")
        return route

    def _endpoint(self, key: KeyRow, slug: str) -> EndpointRow | None:
        endpoint = self._directory.endpoint(slug)
        return endpoint if endpoint is not None and endpoint.workspace_id == key.workspace_id else None


def _group(identified: Identified) -> Group:
    """Slug paths are for federated keys, so there is one; a key without a group has no business here."""
    if identified.group is None:
        raise BadCredentialError
    return identified.group
