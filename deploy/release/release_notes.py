"""The notes of a release, from CHANGELOG.md. Does no I/O."""

import re

UNRELEASED = "Unreleased"
_SECTION = re.compile(r"^## +(.+?) *$", re.MULTILINE)


def sections(changelog: str) -> dict[str, str]:
    """The text of each section by the first word of its heading, so that a date may follow the version."""
    parts = _SECTION.split(changelog)
    return {
        heading.split()[0].strip("[]"): text.strip() for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def notes(changelog: str, version: str, commit: str) -> str:
    """The section of `version`, else what is unreleased, which the heading then says.

    Raises `LookupError` if the changelog has neither.
    """
    by_title = sections(changelog)
    if text := by_title.get(version):
        title = f"Tollgate {version}"
    elif text := by_title.get(UNRELEASED):
        title = f"Tollgate {version} (CHANGELOG.md has no section {version}: these are the unreleased changes)"
    else:
        raise LookupError(f"CHANGELOG.md has neither a section {version} nor one called {UNRELEASED}")
    return f"# {title}\n\nCommit {commit}.\n\n{text}\n"
