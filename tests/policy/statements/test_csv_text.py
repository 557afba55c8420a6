"""CSV that no spreadsheet runs."""

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from policy.statements.csv_text import csv_text

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))


def test_formulas_become_text_and_numbers_stay() -> None:
    assert csv_text([("\n=1", "＝1")]) == "\"'\n=1\",'＝1\n"
    assert csv_text([("=1+1", "+x", "-x", "@x", "\tx", -5, "a-b")]) == "'=1+1,'+x,'-x,'@x,'\tx,-5,a-b\n"


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_cells_are_read_back_as_they_were(cells: list[str]) -> None:
    (read,) = csv.reader(io.StringIO(csv_text([cells]), newline=""))
    assert [cell.removeprefix("'") for cell in read] == [cell.removeprefix("'") for cell in cells]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in read)
