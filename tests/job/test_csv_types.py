"""CSV columns have the types that the program gives. An error names a value that does not fit; none is guessed."""

import csv
from collections import namedtuple
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, NewType, Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megaflow.errors import SourceError, UsageError
from megaflow.job.files.splits import plan_splits
from megaflow.job.formats.csv_format import Csv
from megaflow.job.formats.csv_types import CONVERTERS, column_types, differing, type_of
from megaflow.job.worker.process.flow import Flow
from megaflow.testing import Join, Leave, SimulatedCluster
from tests.job.test_csv_format import Counted, pushed, queue_of, read, rows_of

UserId = NewType("UserId", int)


class Row(NamedTuple):
    id: UserId
    name: str
    price: float | None
    paid: bool
    total: Decimal
    day: date
    at: datetime


class Few(NamedTuple):
    id: int
    note: str


MISSING = "Missing"  # a name that no module has
IDS = st.sampled_from(["1", " 2", "", "x", "1_0"])
SECONDS = timedelta(seconds=1)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(), float: st.floats(allow_nan=False), bool: st.booleans(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False), date: st.dates(),
    datetime: st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(-3723 * SECONDS))),
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_that_was_written_is_read_again(kind: Any) -> None:
    @given(st.lists(VALUES[kind] | st.none(), max_size=5))
    @settings(max_examples=50)
    def check(values: list[Any]) -> None:
        texts = ["" if value is None else str(value) for value in values]
        column = type_of(kind | None, "it")
        assert [*column.column(texts)] == [*map(column.value, texts)] == values
        assert {type(value) for value in column.column(texts)} <= {kind, type(None)}

    check()


def test_all_types_have_values_to_be_tested_with() -> None:
    assert VALUES.keys() == CONVERTERS.keys()


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        (int, ["7", " -7", "+7 "], [7, -7, 7]),
        (float, ["1e3", " nan", "-inf"], ["1000.0", "nan", "-inf"]),
        (bool, ["true", "FALSE", "t", "F", "yes", "No", "Y", "n", "1", "0 "], [True, False] * 5),
        (date, ["2024-02-29 "], [date(2024, 2, 29)]),
        (datetime, ["2024-02-29", "2024-02-29 12:00:00.123456000"], [
            datetime(2024, 2, 29), datetime(2024, 2, 29, 12, 0, 0, 123456)]),
        (str, [" a", ""], [" a", ""]),
        (str | None, [" a", ""], [" a", None]),
        (Optional[int], [" ", "", "3"], [None, None, 3]),  # noqa: UP045
    ],
)  # fmt: skip
def test_texts_that_are_values(kind: Any, texts: list[str], values: list[Any], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k\n" + "".join(f'"{text}"\n' for text in texts))
    found = [row["k"] for row in rows_of(tmp_path / "a.csv", types={"k": kind})]
    assert (list(map(str, found)) if kind is float else found) == values


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "1_000"), (int, "7.0"), (int, "0x7"), (int, "1,000"), (int, "9" * 5000), (float, "1_0"), (float, "1,5"),
        (Decimal, "NaN"), (Decimal, "sNaN123"), (Decimal, "-inf"), (Decimal, "1_0"), (Decimal, "ten"), (bool, "on"),
        (bool, "2"), (date, "29.02.2024"), (date, "2023-02-29"), (date, "2024-02-28T12:00"), (datetime, "noon"),
        (datetime, "2024-02-29 12:00:00.123456789"), (int, "-"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_value_is_a_fault_and_never_a_guess(kind: Any, text: str, tmp_path: Path) -> None:
    path, counted = tmp_path / "a.csv", Counted()
    path.write_text(f'n,k\n1,\n2,"{text}"\n3,\n')
    assert [row["n"] for row in rows_of(path, types={"n": int, "k": kind | None}, skip=counted)] == [1, 3]
    [said] = counted.texts
    assert "line 3 of '" in said and f"column 'k' is '{text[:40]}" in said and f"not of type {kind.__name__}" in said


@pytest.mark.parametrize("kind", CONVERTERS)
def test_an_empty_field_is_a_fault_unless_the_type_allows_it(kind: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n,k\n1,\n2," "\n')
    assert [row["k"] for row in rows_of(tmp_path / "a.csv", types={"k": kind | None})] == [None, None]
    counted = Counted()
    assert rows_of(tmp_path / "a.csv", types={"k": kind}, skip=counted) == []
    assert ["column 'k' is empty" in said for said in counted.texts] == [True, True]


def test_a_value_that_does_not_fit_is_named_with_all_that_helps(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,note\n1,"two\nlines"\n\nabc,x\n4,\n')
    with pytest.raises(SourceError, match=(
        r"line 5 of '.*a\.csv' is not a row of CSV: its column 'id' is 'abc', not of type int; the line is 'abc,x'\. "
        r"types=\{'id': str\} keeps the text\. on_error='skip' skips records that cannot be parsed\."
    )):  # fmt: skip
        rows_of(path, as_=Few)
    counted = Counted()
    assert rows_of(path, as_=Few, skip=counted) == [Few(1, "two\nlines"), Few(4, "")] and len(counted.texts) == 1
    assert rows_of(path, as_=Few, types=str)[1] == ("abc", "x")
    assert rows_of(path, as_=Few, types={"id": str})[1] == ("abc", "x")
    path.write_text("id,note\n,x\n")
    with pytest.raises(SourceError, match=r"column 'id' is empty; .*'int \| None' allows empty fields\."):
        rows_of(path, as_=Few)
    path.write_text("1,2\n3,x\n5,6\n")
    with pytest.raises(SourceError, match=r"line 2 of .* its field 2 is 'x', not of type float; .*types=str keeps"):
        rows_of(path, header=False, as_=tuple, types=float)


def test_annotations_are_types_and_types_replaces_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "name,id,price,paid,total,day,at\nlamp,0,,yes,1.10,2024-01-02,2024-01-02 03:04:05+01:00\n"
    )
    [row] = rows_of(tmp_path / "a.csv", as_=Row)
    hour = timezone(timedelta(hours=1))
    at = datetime(2024, 1, 2, 3, 4, 5, tzinfo=hour)
    assert row == Row(UserId(0), "lamp", None, True, Decimal("1.10"), date(2024, 1, 2), at)
    assert [*map(type, row)] == [int, str, type(None), bool, Decimal, date, datetime]
    [row] = rows_of(tmp_path / "a.csv", as_=Row, types={"total": str, "price": float | None})
    assert (row.id, row.total) == (0, "1.10")
    assert rows_of(tmp_path / "a.csv", as_=Row, types=str)[0][:3] == ("0", "lamp", "")
    assert rows_of(tmp_path / "a.csv", as_=tuple, types={"id": int})[0][:3] == ("lamp", 0, "")
    without = namedtuple("without", Row._fields)
    assert rows_of(tmp_path / "a.csv", as_=without)[0].id == "0"


LATE = """
from __future__ import annotations
from typing import NamedTuple, Optional
import decimal, datetime as dt

class Late(NamedTuple):
    id: Optional[int]
    total: decimal.Decimal
    day: dt.date | None
"""


@pytest.mark.parametrize("module", ["__main__", "not_imported_here"])
def test_annotations_may_be_texts_whose_imports_stayed_at_home(module: str) -> None:
    names: dict[str, Any] = {"__name__": module}
    exec(LATE, names)
    assert Csv(as_=names["Late"]).types.recorded() == (("day", "date"), ("id", "int"), ("total", "Decimal"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"as_": NamedTuple("R", [("id", list[int])])}, r"R\.id is list\[int\], which is not a type of CSV columns"),
        ({"as_": NamedTuple("R", [("id", int | str)])}, r"R\.id is int \| str, which"),
        ({"as_": NamedTuple("R", [("id", complex)])}, r"R\.id is complex, .*Use str, int, float, bool, Decimal, "),
        ({"as_": NamedTuple("R", [("id", MISSING)])}, r"annotations of R cannot be evaluated here: name 'Missing'"),
        ({"types": {"id": "int"}}, r"types\['id'\] is 'int', which is not a type"),
        ({"types": {"id": int}, "as_": NamedTuple("R", [("ID", int)])}, "'id', which is not the name of one of the fi"),
        ({"types": {0: int}}, "types names 0, which is not the name"),
        ({"types": "int"}, "types is 'int', which is not a type"),
        ({"types": [int]}, r"types is \[<class 'int'>\], which is not a type"),
        ({"types": {"id": int}, "header": False, "as_": tuple}, r"they have no names\. Give the names in header=\[…\]"),
    ],
)
def test_what_cannot_be_a_type_is_refused_by_its_name(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Csv(**options)


def test_a_column_that_no_file_has_is_refused_by_file_and_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,note\n1,2\n")
    with pytest.raises(SourceError, match=r"types names the column 'ID', but '.*a\.csv' has the columns id, note"):
        rows_of(tmp_path / "a.csv", types={"ID": int})


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(IDS, st.text("ab\n\",", max_size=3)), min_size=1), st.integers(0, 3))
def test_rows_are_the_same_however_they_are_read(tmp_path: Path, rows: list[tuple[str, str]], batches: int) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("id", "note"), *rows])
    wanted = [Few(int(id), note) for id, note in rows if id.strip().isdecimal()]
    counted = Counted()
    assert rows_of(path, as_=Few, skip=counted) == wanted and len(counted.texts) == len(rows) - len(wanted)
    counted = Counted()
    first = queue_of(*plan_splits([str(path)]), format=Csv(counted, as_=Few))
    records = read(first, batches)
    assert records + read(queue_of(*first.give_back(), format=Csv(counted, as_=Few))) == wanted
    assert len(counted.texts) == len(rows) - len(wanted)
    single = [(id, note.replace("\n", " ")) for id, note in rows]
    assert pushed(["id,note", *(as_line(row) for row in single)], as_=Few, skip=Counted()) == [
        Few(each.id, each.note.replace("\n", " ")) for each in wanted
    ]


def as_line(row: Sequence[str]) -> str:
    return ",".join('"' + each.replace('"', '""') + '"' for each in row)


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ((dict, None), (Few, None), ("id", "str", "int")),
        ((Few, None), (dict, {"id": int}), None),
        ((Few, None), (dict, None), ("id", "int", "str")),
        ((Few, None), (Few, str), ("id", "int", "str")),
        ((Few, None), (Few, {"id": int | None}), None),
        ((Few, None), (Few, {"note": str | None}), ("note", "str", "str | None")),
        ((Few, None), (NamedTuple("More", [*Few.__annotations__.items(), ("cents", int)]), None), None),
        ((Few, None), (NamedTuple("Less", [("note", str)]), None), None),
        ((dict, float), (dict, None), ("", "float", "str")),
        ((dict, {"a": date}), (dict, {"b": date}), ("a", "date", "str")),
    ],
)
def test_a_record_of_types_differs_where_values_would(before: Any, now: Any, found: Any) -> None:
    assert differing(*(column_types(*each, True).recorded() for each in (before, now))) == found


@pytest.mark.parametrize("seed", range(4))
def test_typed_rows_are_exact_while_workers_come_and_go(seed: int) -> None:
    def total(id: int, cents: int, state: int | None) -> Any:
        state = (state or 0) + cents
        return state, [(id, state)]

    def dataflow(flow: Flow) -> Any:
        rows = flow.csv(types={"id": int, "cents": int}, on_error="skip")
        return rows.map(lambda row: (row["id"], row["cents"])).stateful_state_machine(total)

    lines = ["id,cents", *(f"{number % 7},{number if number % 50 else 'none'}" for number in range(400))]
    cluster = SimulatedCluster(seed)
    cluster.at(record=30, do=Join())
    cluster.at(record=60, do=Leave(seed % 2))
    wanted = {id: sum(number for number in range(id, 400, 7) if number % 50) for id in range(7)}
    assert dict(cluster.run(dataflow, lines=[lines])) == wanted
