"""The check of a batch of rows accepts exactly the rows that the check of each value accepts."""

import sqlite3
from collections import namedtuple
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.connect.row_check import INTEGERS, RowCheck, row_check
from megaflow.connect.table_rows import Delete, TableRows
from megaflow.errors import ProgramError

VALUES = (
    st.none() | st.booleans() | st.floats() | st.binary(max_size=2) | st.text(max_size=2)
    | st.sampled_from([1, 1 << 31, 1 << 63, -(1 << 63), -(1 << 63) - 1, "\udfff", "a\0", [1], {}, Decimal(1), date.min])
)  # fmt: skip
COLUMNS = ["name", "total"]


def of_sqlite() -> RowCheck:
    check = row_check(sqlite3.connect(":memory:").cursor(), 2)
    assert check is not None
    return check


def refused_each(rows: TableRows, records: list[Any], check: RowCheck) -> bool:
    """Whether the check of single values refuses a record."""

    class OneByOne(RowCheck):
        def accepts(self, columns: Any) -> bool:
            return False

    slow = OneByOne(check._others, check._bounds, check._plain, check._nul)
    try:
        for record in records:
            rows.check([record], slow)
    except ProgramError:
        return True
    return False


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@given(st.lists(st.tuples(VALUES, VALUES), max_size=4), st.booleans())
def test_a_batch_is_refused_if_one_of_its_values_is(records: list[Any], has_key: bool) -> None:
    rows, check = TableRows('"t"', COLUMNS, ["name"] if has_key else []), of_sqlite()
    try:
        rows.check(records, check)
        refused = False
    except ProgramError:
        refused = True
    assert refused == refused_each(rows, records, check)


def test_postgresql_accepts_no_nul_and_no_wide_integer_in_a_batch() -> None:
    check = RowCheck([lambda _: None] * 2, [None, INTEGERS[23]], frozenset({type(None)}), nul=False)
    assert check.accepts([("a", None), (1, -(1 << 31))])
    assert not check.accepts([("a", "b\0"), (1, 2)]) and not check.accepts([("a", "b"), (None, 1 << 31)])
    assert not check.accepts([("a", b"b"), (1, 2)]), "what is not plain is asked about"


def test_rows_of_dicts_and_named_tuples_are_in_the_order_of_the_columns() -> None:
    rows = TableRows('"t"', COLUMNS, [])
    named = namedtuple("Total", "total name")(3, "c")
    assert rows.all_rows([("a", 1), {"total": 2, "name": "b"}, named]) == [("a", 1), ("b", 2), ("c", 3)]
    tuples = [("a", 1), ("b", 2)]
    assert rows.all_rows(tuples) is tuples and rows.all_rows([("a", 1), ("b",)]) is None
    assert TableRows('"t"', COLUMNS, ["name"]).all_rows([("a", 1), Delete("a")]) is None
