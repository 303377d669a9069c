"""Records as rows of CSV: the csv module reads the same values back, or the record is refused."""

import csv
import io
import math
from collections import Counter
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import ProgramError
from megaflow.job.worker.writing.csv_rows import CsvRows

TEXT = st.text(st.characters(codec="utf-8"))


class Pair(NamedTuple):
    word: str
    count: int


@dataclass
class Shape:
    word: str
    count: int


class Colour(Enum):
    RED = "red"


def rows(records: list[Any], *columns: str) -> list[list[str]]:
    rendered = CsvRows(columns).render(3, records)
    assert columns or isinstance(rendered.pop(0), tuple)
    assert all(line.endswith("\n") and not line.endswith("\r\n") for line in rendered)
    return [*csv.reader(io.StringIO("".join(rendered), newline=""))]


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1))
def test_any_text_comes_back_as_it_was_line_ends_and_quotes_included(given: list[tuple[str, str]]) -> None:
    assert rows([{"a": a, "b": b} for a, b in given]) == [[*pair] for pair in given]


def test_dicts_named_tuples_and_dataclasses_are_rows_whatever_the_order_of_their_fields() -> None:
    some = [{"word": "a", "count": 1}, Pair("b", 2), Shape("c", 3), Counter(count=4, word=5), {"count": 6, "word": "d"}]
    assert rows(some) == [["a", "1"], ["b", "2"], ["c", "3"], ["5", "4"], ["d", "6"]]
    assert rows([Pair("b", 2), {"word": "a", "count": 1}], "count", "word") == [["2", "b"], ["1", "a"]]
    assert rows([("b", 2), ["c", 3], Pair("d", 4)], "count", "word") == [["b", "2"], ["c", "3"], ["4", "d"]]
    assert rows([{"only": None}, {"only": ""}]) == [[""], [""]]


def test_the_columns_are_said_before_the_rows_of_each_batch_unless_they_were_given() -> None:
    render = CsvRows().render
    assert render(1, [Pair("a", 1)]) == [("word", "count"), "a,1\n"]
    assert render(2, [{"count": 2, "word": "b"}]) == [("word", "count"), "b,2\n"] and render(3, []) == []
    assert CsvRows(["x"]).render(1, [(5,)]) == ["5\n"]


def test_a_value_is_what_json_lines_makes_of_it() -> None:
    values: dict[str, Any] = {
        "none": None, "flag": True, "float": 0.1, "nan": math.nan, "day": date(2026, 2, 3), "decimal": Decimal("1.50"),
        "colour": Colour.RED, "lone": "\ud800x",
    }  # fmt: skip
    assert rows([values]) == [["", "True", "0.1", "nan", "2026-02-03", "1.50", "red", "\ufffdx"]]


@pytest.mark.parametrize(
    ("columns", "record", "why"),
    [
        ((), ("a", 1), r"\('a', 1\) does not fit: its type, tuple, names no columns: .*csv:PATH\?columns"),
        ((), "word", "its type, str, names no columns"),
        ((), {}, "its keys, none, cannot name columns"),
        ((), {1: 2}, "its keys, 1, cannot name columns"),
        (("a", "b"), {"a": 1}, "its keys are a, but the columns are a, b; map the records"),
        (("a", "b"), {"a": 1, "b": 2, "c": 3}, "its keys are a, b, c, but the columns are a, b"),
        (("a", "b"), (1, 2, 3), "it has 3 values for 2 columns"),
        (("a", "b"), Pair("x", 1), "its fields are word, count, but the columns are a, b"),
        (("a",), "word", "its type, str, is not a row"),
        (("a",), ([1],), r"\[1\] of type list is not a single value"),
        (("a",), (b"x",), "of type bytes is not a single value"),
        (("a",), (object,), "of type type is not a single value"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_record(columns: tuple[str, ...], record: Any, why: str) -> None:
    with pytest.raises(ProgramError, match=f"--output csv: The record .*{why}"):
        CsvRows(columns).render(0, [record])


def test_a_second_record_with_other_columns_than_the_first_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"record \{'c': 2\} does not fit: its keys are c, but the columns are a"):
        CsvRows().render(0, [{"a": 1}, {"c": 2}])
