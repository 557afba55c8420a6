"""Writes the tables of docs/reference/roles.md from the code: `python -m tests.control.api.protocol.roles_matrix`."""

from pathlib import Path

from control.app import OPERATIONS
from policy.keys.permissions import MEANINGS, Permission, roles_with
from policy.keys.roles import Role

PAGE = Path(__file__).parents[4] / "docs/reference/roles.md"
_HEAD = " | ".join(f"`{role.value}`" for role in Role)
_LINE = "|".join("---" for _ in Role)


def _marks(permission: Permission) -> str:
    holders = roles_with(permission)
    return " | ".join("yes" if role in holders else "" for role in Role)


def permissions_table() -> str:
    """The permissions, what each is for, and the roles that have it."""
    rows = [f"| `{one.value}` | {MEANINGS[one]} | {_marks(one)} |" for one in Permission]
    return "\n".join([f"| permission | to | {_HEAD} |", f"|---|---|{_LINE}|", *rows])


def operations_table() -> str:
    """Every operation of the management API, the permission that it needs, and the roles that may call it."""
    rows = [f"| `{one.method} {one.path}` | `{one.needs.value}` | {_marks(one.needs)} |" for one in OPERATIONS]
    return "\n".join([f"| operation | needs | {_HEAD} |", f"|---|---|{_LINE}|", *rows])


def with_tables(text: str) -> str:
    """The page with the tables as the code has them."""
    for name, table in (("permissions", permissions_table()), ("operations", operations_table())):
        before, begin, rest = text.partition(f"<!-- {name}: ")
        how, _, after = rest.partition("-->\n")
        _, end, after = after.partition(f"<!-- end of {name} -->")
        assert begin, name
        assert end, name
        text = f"{before}{begin}{how}-->\n{table}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
