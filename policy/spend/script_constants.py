"""The layout of the spend hash as Lua constants. They come before `policy/spend/money.lua`.

See docs/reference/money.md#how-spend-is-counted.
"""

from policy.limits.counter_layout import HASH_EXPIRY_S
from policy.limits.windows import DAY_MS
from policy.spend.key_names import KEY_NAME
from policy.spend.spend_hash import AMOUNT_BYTES, DRAWS_COUNTED, INCARNATION_CHARS, KEYS_COUNTED, LIMB

RENEWED_MS = 3_600_000
"""Control renews the expiry of a hash when `c` comes to another hour; a take does where `c` is older than this."""


def spend_constants() -> str:
    """The constants of money.lua. A hash expires as the limits' do: `EXPIRY_S` after its last use."""
    numbers = {
        "LIMB": LIMB,
        "DAY_MS": DAY_MS,
        "EXPIRY_S": HASH_EXPIRY_S,
        "RENEWED_MS": RENEWED_MS,
        "AMOUNT_BYTES": AMOUNT_BYTES,
        "GROUPS_AT": AMOUNT_BYTES + INCARNATION_CHARS + 1,
    }
    return (
        "local AMOUNT, SPENT = '<I8I8', '<I8I8I8'\n"
        f"local {', '.join(numbers)} = {', '.join(map(str, numbers.values()))}\n"
        f"local DRAWS_COUNTED, KEYS_COUNTED, KEY_NAME = '{DRAWS_COUNTED}', '{KEYS_COUNTED}', '{KEY_NAME}'\n"
    )
