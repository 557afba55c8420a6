"""Tables are aligned on a terminal, and JSON for scripts cannot move its cursor."""

import json
import sys

import pytest

from commands.output import Column, Table, cut, json_text, table

COLUMNS = (Column("NAME", lambda item: item["name"]), Column("ID", lambda item: item["id"]))


def test_wide_and_combining_characters_keep_columns_aligned() -> None:
    items = [{"name": "\u9867\u5ba2", "id": "a"}, {"name": "e\u0301te", "id": "b"}]
    assert table(COLUMNS, items).splitlines() == ["NAME  ID", "\u9867\u5ba2  a", "e\u0301te   b"]


def test_parts_of_a_table_have_one_line_of_headers_and_grow() -> None:
    parts = Table(COLUMNS)
    assert parts.rows([{"name": "a", "id": "1"}]).splitlines() == ["NAME  ID", "a     1"]
    assert parts.rows([{"name": "longer", "id": "2"}]).splitlines() == ["longer  2"]
    assert parts.rows([{"name": "b", "id": "3"}]).splitlines() == ["b       3"]
    assert parts.rows([]) == ""


def test_text_is_cut_to_columns_of_a_terminal() -> None:
    assert (cut("\u9867\u5ba2x", 3), cut("\u9867\u5ba2x", 4), cut("abc", 9)) == ("\u9867", "\u9867\u5ba2", "abc")


def test_json_shows_letters_and_escapes_what_a_terminal_obeys() -> None:
    answer = {"name": "\u9867 \U0001f600 \x1b[8m \x9b31m \u202e"}
    text = json_text(answer)
    assert json.loads(text) == answer
    assert "\u9867 \U0001f600" in text
    assert text.replace("\n", "").isprintable()


def test_json_has_no_surrogates_which_yaml_cannot_read() -> None:
    answer = {"name": "\U0001f600 \U000e0001 \U000f0000 \U0010fffd"}
    text = json_text(answer)
    assert json.loads(text) == answer
    assert "\\u" not in text


@pytest.mark.parametrize("value", [10**30, -(10**30), "half \ud83d of a pair", {"a": [], "b": {}}, 1.5, None])
def test_json_of_any_answer_is_indented_and_keeps_its_values(value: object) -> None:
    text = json_text({"value": value, "more": [1, "\u9867"]})
    assert json.loads(text) == {"value": value, "more": [1, "\u9867"]}
    assert text.splitlines()[0] == "{"
    assert text.endswith(',\n  "more": [\n    1,\n    "\u9867"\n  ]\n}')


def test_long_json_takes_no_python_call_per_value() -> None:
    """`groups tree --json` of 20 000 groups writes 330 MB."""
    calls = 0

    def count(_frame: object, kind: str, _arg: object) -> None:
        nonlocal calls
        calls += kind == "call"

    answer = [{"id": number, "models": [{"slug": "acme/chat"}]} for number in range(1000)]
    sys.setprofile(count)
    try:
        json_text(answer)
    finally:
        sys.setprofile(None)
    assert calls < 100
