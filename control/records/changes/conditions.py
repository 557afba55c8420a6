"""The condition of a write: the version of a resource that its caller knows (RFC 9110 13.1.1, 13.1.2). Values only."""

from dataclasses import dataclass

from control.errors import PreconditionFailedError


@dataclass(frozen=True, slots=True)
class Tags:
    """The entity tags that a header field names, without their quotes. `is_any`: the field is `*`."""

    is_any: bool = False
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Condition:
    """`If-Match` and `If-None-Match` of a request. None: without the field, which asks for nothing."""

    if_match: Tags | None = None
    if_none_match: Tags | None = None

    def check(self, tag: str | None) -> None:
        """Refuse a write of the resource whose tag is now `tag`. None: there is no such resource."""
        self.check_match(tag)
        if self.is_known(tag):
            raise PreconditionFailedError("If-None-Match names what is there now")

    def check_match(self, tag: str | None) -> None:
        """Refuse a tag that `If-Match` does not name. A weak one matches nothing (RFC 9110 13.1.1)."""
        tags = self.if_match
        if tags is None or (tag is not None and (tags.is_any or tag in tags.strong)):
            return
        raise PreconditionFailedError(_reason(tags, tag))

    def is_known(self, tag: str | None) -> bool:
        """Return whether `If-None-Match` names the tag."""
        tags = self.if_none_match
        return tags is not None and tag is not None and (tags.is_any or tag in tags.strong | tags.weak)


def _reason(tags: Tags, tag: str | None) -> str:
    if tag is None:
        return "there is nothing to match"
    if tag in tags.weak:
        return 'If-Match has a weak tag, which never matches: send the tag without W/, as "…"'
    return "it was changed since you read it"
