"""Group trees for the tests of policy: paths from a group up to its root, with random limits."""

from collections.abc import Sequence

from hypothesis import strategies as st

from policy.limits.effective import LimitSet, limit_set
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import USAGE_TYPES, LimitType, Unit
from policy.limits.limit import Limit, SlugLimits

SLUGS = ("a/x", "a/y")

RATES = st.tuples(
    *(
        st.none() | st.builds(Limit, st.just(kind), st.sampled_from([Unit.SECOND, Unit.MINUTE]), st.integers(1, 9))
        for kind in LimitType
    )
)
USAGES = st.tuples(
    *(
        st.none() | st.builds(Limit, st.just(kind), st.just(unit), st.integers(1, 9))
        for kind in USAGE_TYPES
        for unit in (Unit.DAY, Unit.MONTH)
    )
)


def present(limits: tuple[Limit | None, ...]) -> tuple[Limit, ...]:
    return tuple(limit for limit in limits if limit)


@st.composite
def models(draw: st.DrawFn) -> tuple[SlugLimits, ...]:
    slugs = draw(st.lists(st.sampled_from(SLUGS), unique=True))
    return tuple(SlugLimits(slug, present(draw(RATES)), present(draw(USAGES))) for slug in slugs)


def group(
    name: str, parent: str | None = None, mode: Enforcement = Enforcement.CASCADING, *entries: SlugLimits
) -> Group:
    return Group(name, "w", parent, f"ext-{name}", mode, entries)


def levels_for(path: Sequence[Group], slug: str) -> list[LimitSet | None]:
    """Return what each group of the path has for the slug, in its own models."""
    return [next((limit_set(entry.limits) for entry in group.models if entry.slug == slug), None) for group in path]


@st.composite
def paths(draw: st.DrawFn) -> tuple[Group, ...]:
    """A group and its ancestors, from the group up to the root."""
    mode = draw(st.sampled_from(list(Enforcement)))
    names = [f"g{level}" for level in range(draw(st.integers(1, 5)))]
    parents = [*names[1:], None]
    return tuple(group(name, parent, mode, *draw(models())) for name, parent in zip(names, parents, strict=True))
