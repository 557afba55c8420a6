"""The Lua that comes before each script of the spend hash: the constants of its layout, and `money.lua`.

See docs/reference/money.md#how-spend-is-counted.
"""

from importlib import resources

from policy.limits.counter_layout import HASH_EXPIRY_S
from policy.limits.windows import DAY_MS
from policy.spend.spend_hash import AMOUNT_BYTES, INCARNATION_CHARS, LIMB

RENEWED_MS = 3_600_000
"""Control renews the expiry of a hash when `c` comes to another hour; a take does where `c` is older than this."""


def money_script() -> str:
    """The constants and `money.lua`. A hash expires as the limits' do: `EXPIRY_S` after its last use."""
    constants = {
        "LIMB": LIMB,
        "DAY_MS": DAY_MS,
        "EXPIRY_S": HASH_EXPIRY_S,
        "RENEWED_MS": RENEWED_MS,
        "AMOUNT_BYTES": AMOUNT_BYTES,
        "GROUPS_AT": AMOUNT_BYTES + INCARNATION_CHARS + 1,
    }
    numbers = f"local {', '.join(constants)} = {', '.join(map(str, constants.values()))}\n"
    return (
        "local AMOUNT, SPENT = '<I8I8', '<I8I8I8'\n"
        + numbers
        + resources.files("policy.spend").joinpath("money.lua").read_text("utf-8")
    )
