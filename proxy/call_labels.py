"""What metrics and access log say about the maker of a call: the same for all calls of a key to one slug and path."""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False, kw_only=True)
class CallLabels:
    """What did not become known is "". Contains no secrets: only the key's prefix, and nothing about the target."""

    method: str
    path: str
    workspace_id: str = ""
    external_entity_id: str = ""
    group_id: str = ""
    key_prefix: str = ""
    slug: str = ""
    model_id: str = ""
    """Of a direct call; then there is no slug."""
    counted: tuple[str, str, str] = field(init=False)
    """The labels of metrics: workspace, external entity, and slug or model."""
    encoded: bytes = field(init=False, default=b"")
    """The members of a log line, as JSON. The access log sets it with the first line."""

    def __post_init__(self) -> None:
        self.counted = (self.workspace_id, self.external_entity_id, self.slug or self.model_id)
