"""The bounds count the values of a long text before it is parsed, and nothing inside its strings."""

import json

import pytest

from proxy.json_text import json_bounds
from proxy.json_text.json_bounds import (
    MAX_CONTAINERS,
    MAX_MEMBERS,
    MAX_OUTSIDE_BYTES,
    MAX_STRINGS,
    MAX_VALUES,
    TooManyValuesError,
)
from proxy.json_text.sliced_json import AT_ONCE_BYTES, parse_in_slices
from proxy.time_slices import at_once

PAD = "x" * AT_ONCE_BYTES


@pytest.mark.parametrize(
    "value",
    [
        [1] * (MAX_VALUES - 10),
        ["a"] * (MAX_STRINGS - 10),
        [{}] * (MAX_CONTAINERS - 10),
        ["\\", '"', '\\"', "[,{"] * 10_000,
        "0,1,2," * MAX_VALUES,
        '{"a": [1, 2, "b\\\\"]}, ' * 100_000,
        '\\"' * MAX_VALUES,
    ],
    ids=["values", "strings", "objects", "odd texts", "a table", "JSON in a text", "escapes"],
)
def test_sizes_of_real_requests_are_within_the_bounds(value: object) -> None:
    raw = json.dumps({"model": "m", "pad": PAD, "value": value}).encode()
    parsed, outline = at_once(parse_in_slices(raw))
    assert outline is not None
    assert outline.restored_value(parsed, len(raw)) == json.loads(raw)


@pytest.mark.parametrize("pad", [PAD, "x" * json_bounds.SMALL_BYTES], ids=["long", "short"])
@pytest.mark.parametrize(
    ("one", "most"),
    [
        ("0", MAX_VALUES),
        ("{}", MAX_CONTAINERS),
        ("[]", MAX_CONTAINERS),
        ("[[]]", MAX_CONTAINERS // 2),
        ('""', MAX_STRINGS),
        ('{"":1}', MAX_CONTAINERS),
        (" " * (MAX_OUTSIDE_BYTES // 10_000) + "0", 10_000),
        ('"%s"' % ("\\n" * 60), MAX_OUTSIDE_BYTES // 122),
    ],
)
def test_text_above_a_bound_is_refused(one: str, most: int, pad: str) -> None:
    with pytest.raises(TooManyValuesError):
        at_once(parse_in_slices(f'{{"pad":"{pad}","a":[{",".join([one] * (most + 1))}]}}'.encode()))


@pytest.mark.parametrize("name", ['"a"', '"%d"', '"\\u0061%d"'])
def test_object_of_too_many_members_is_refused(name: str) -> None:
    members = ",".join((name % n if "%" in name else name) + ":0" for n in range(MAX_STRINGS + 1))
    with pytest.raises(TooManyValuesError):
        at_once(parse_in_slices(f'{{"pad":"{PAD}",{members}}}'.encode()))


@pytest.mark.parametrize("pad", [PAD, ""], ids=["long", "short"])
def test_outermost_object_has_a_bound_on_members(pad: str) -> None:
    members = ",".join(f'"{n}":0' for n in range(MAX_MEMBERS))
    with pytest.raises(TooManyValuesError, match="members"):
        at_once(parse_in_slices(f'{{"pad":"{pad}",{members}}}'.encode()))
