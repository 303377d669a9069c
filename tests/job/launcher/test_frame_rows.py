"""Tables given as items are read row by row, with the same values for every library."""

import datetime
import subprocess
import sys
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.errors import CannotTravel, UsageError
from megaflow.job.launcher.inputs.frame_rows import ROWS_AT_ONCE, FrameRows, is_table
from megaflow.job.launcher.inputs.launcher_input import find_input, find_rows
from megaflow.job.launcher.inputs.pulled_source import packed
from megaflow.timely.communication.codec.decode import decode
from tests.results import check_equal

np = pytest.importorskip("numpy")  # they come with megaflow[arrow]
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

NAN = float("nan")
MOMENT = datetime.datetime(2024, 1, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
ROWS = [
    {"n": 1, "f": 0.5, "s": "ada", "b": True, "t": MOMENT, "d": datetime.timedelta(seconds=1), "c": "x"},
    {"n": None, "f": None, "s": None, "b": None, "t": None, "d": None, "c": None},
    {"n": 2**62, "f": -1.0, "s": "", "b": False, "t": MOMENT, "d": datetime.timedelta(0), "c": "y"},
]


def of_polars() -> Any:
    zone = {"t": pl.Datetime("us", "Europe/Berlin"), "n": pl.Int64, "c": pl.Categorical, "d": pl.Duration("us")}
    return pl.DataFrame(ROWS, schema_overrides=zone)


def of_pandas() -> Any:
    types = {"n": "Int64", "f": "Float64", "s": "string", "b": "boolean", "c": "category", "t": "object", "d": "object"}
    return pd.DataFrame(ROWS, index=[7, 7, 9]).astype({**types, "n": "object"}).astype(types)


TABLES: dict[str, Callable[[], Any]] = {
    "pandas": of_pandas,
    "polars": of_polars,
    "pyarrow": lambda: of_polars().to_arrow(),
    "batch": lambda: of_polars().to_arrow().combine_chunks().to_batches()[0],
    "reader": lambda: of_polars().to_arrow().to_reader(1),
    "arrow dtypes": lambda: of_polars().to_arrow().to_pandas(types_mapper=pd.ArrowDtype),
}


@pytest.mark.parametrize("library", TABLES)
def test_a_table_of_any_library_gives_the_same_rows(library: str) -> None:
    table = TABLES[library]()
    assert is_table(table)
    rows = [*FrameRows(table)]
    assert rows == ROWS
    exact = {int, float, str, bool, datetime.datetime, datetime.timedelta, type(None), pd.Timestamp, pd.Timedelta}
    assert exact.issuperset(type(value) for row in rows for value in row.values())
    assert {row["t"].utcoffset() for row in rows if row["t"] is not None} == {datetime.timedelta(hours=1)}
    assert [decode(packed(row)) for row in rows] == ROWS


def test_a_query_of_duckdb_is_a_table() -> None:
    database = duckdb.connect()
    query = database.sql("SELECT 1 AS n, 1.10::DECIMAL(5, 2) AS price, {'a': [NULL, 2]} AS deep, NULL AS no")
    assert is_table(query)
    assert [*FrameRows(query)] == [{"n": 1, "price": Decimal("1.10"), "deep": {"a": [None, 2]}, "no": None}]


columns = st.sampled_from(["int32", "uint64", "float32", "float64", "bool", "object", "Int8", "datetime64[ns]"])


@settings(deadline=None, max_examples=15)
@given(st.lists(columns, max_size=4), st.integers(0, 2 * ROWS_AT_ONCE + 1), st.randoms(use_true_random=False))
def test_rows_are_those_of_the_columns(kinds: list[str], count: int, rng: Any) -> None:
    values = [[rng.randrange(100) for _ in range(count)] for _ in kinds]
    frame = pd.DataFrame({str(n): pd.Series(column, dtype=kind) for n, (column, kind) in enumerate(zip(values, kinds))})
    rows = [*FrameRows(frame)]
    assert len(rows) == len(frame)
    for n, kind in enumerate(kinds):
        wanted: list[Any] = [*map(pd.Timestamp, values[n])] if kind.startswith("date") else values[n]
        wanted = [*map(bool, wanted)] if kind == "bool" else wanted
        assert [row[str(n)] for row in rows] == wanted
        if kind in ("int32", "uint64", "Int8"):
            assert {type(row[str(n)]) for row in rows} <= {int}


def test_missing_values_are_none_but_nan_of_floats_stays() -> None:
    frame = pd.DataFrame({
        "f": [NAN], "o": pd.Series([NAN], dtype=object), "t": [pd.NaT], "z": pd.Series([pd.NaT]).dt.tz_localize("UTC"),
        "n": pd.array([None], dtype="Int64"), "c": pd.Categorical([None], ["a"]), "p": pd.PeriodIndex([None], freq="M"),
        "s": pd.array([None], dtype="string"), "k": [None],
    })  # fmt: skip
    [row] = FrameRows(frame)
    assert row.pop("f") != row.get("f") and {*row.values()} == {None}
    [row] = FrameRows(pl.DataFrame({"f": [NAN], "g": pl.Series([None], dtype=pl.Float64)}))
    assert row["f"] != row["f"] and row["g"] is None


def test_pandas_keeps_nanoseconds_zones_and_periods() -> None:
    stamp = pd.Timestamp("2024-01-01 00:00:00.000000007", tz="Europe/Berlin")
    frame = pd.DataFrame({"t": [stamp], "d": [pd.Timedelta(7)], "p": [pd.Period("2024-01")]})
    [row] = map(decode, map(packed, FrameRows(frame)))
    assert (row["t"], row["t"].nanosecond, str(row["t"].tz)) == (stamp, 7, "Europe/Berlin")
    assert row["d"] == pd.Timedelta(7) and row["p"] == pd.Period("2024-01")


@pytest.mark.parametrize(
    "kind",
    [pl.Datetime("ns", "UTC"), pl.Datetime("ns"), pl.Duration("ns"), pl.Time, pl.Struct({"a": pl.Datetime("ns")})],
)
def test_nanoseconds_that_would_be_lost_are_refused(kind: Any) -> None:
    wrap = (lambda n: {"a": n}) if kind == pl.Struct else (lambda n: n)
    if kind != pl.Struct:
        assert len([*FrameRows(pl.DataFrame({"at": pl.Series([wrap(7000), None]).cast(kind)}))]) == 2
    with pytest.raises(UsageError, match=r"the column 'at' of type .* has nanoseconds.* Round its times to micro"):
        [*FrameRows(pl.DataFrame({"at": pl.Series([wrap(7)]).cast(kind)}))]


def test_nested_values_arrive_as_dicts_and_lists() -> None:
    table = pa.table({"a": [{"x": [1, 2]}], "b": [[Decimal("1.10")]], "c": [b"\0"], "d": [datetime.date(2024, 1, 1)]})
    assert [decode(packed(row)) for row in FrameRows(table)] == table.to_pylist()


def test_columns_may_have_any_name_but_not_twice() -> None:
    assert [*FrameRows(pd.DataFrame([[1, 2]]))] == [{0: 1, 1: 2}]
    deep = pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")])
    assert [*FrameRows(pd.DataFrame([[1, 2]], columns=deep))] == [{("a", "x"): 1, ("a", "y"): 2}]
    with pytest.raises(UsageError, match=r"several columns of the name 'a'.* Rename these columns"):
        find_input(None, 1, "strict", items=pd.DataFrame([[1, 2]], columns=["a", "a"]))
    twice = pa.table([[1], [2]], names=["a", "a"])
    for table in (twice, twice.to_batches()[0], twice.to_reader(), duckdb.connect().sql("SELECT 1 AS a, 2 AS a")):
        with pytest.raises(UsageError, match="several columns of the name 'a'"):
            find_input(None, 1, "strict", items=table)


FRAME = pd.DataFrame({"price": [1, 2]})


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (next(FRAME.itertuples()), r"Pandas cannot travel.*: use itertuples\(name=None\) or to_dict\('records'\)"),
        (next(FRAME.iterrows()), r"Series cannot travel.*: use tolist\(\) or to_dict\(\)"),
        (FRAME, r"DataFrame cannot travel.*: use to_dict\('records'\)"),
        (pl.DataFrame({"a": [1]}), r"DataFrame cannot travel.*: use to_dicts\(\)"),
        (pa.scalar(1), r"Int64Scalar cannot travel.*: use to_pylist\(\) or as_py\(\)"),
        ({"id": 7, "bin": pd.Interval(0, 1)}, r"^Cannot send the value of 'bin' in an item .*\.astype\(str\)"),
        ({"id": 7, "lock": object()}, "^Cannot send the value of 'lock' in an item of items= to a worker: .*object"),
        (object(), "^Cannot send an item of items= to a worker"),
        (pa.scalar(datetime.timedelta(1), pa.month_day_nano_interval()).as_py(), "use a number of days or seconds"),
    ],
)  # fmt: skip
def test_an_item_that_cannot_travel_is_named_with_a_remedy(item: Any, why: str) -> None:
    with pytest.raises(CannotTravel, match=why):
        packed(item)


def test_a_series_or_array_is_an_iterable_of_values() -> None:
    for values in (FRAME["price"], pl.Series([1, 2]), np.arange(2), pa.array([1, 2]), FRAME.itertuples(name=None)):
        assert not is_table(values)


def test_a_table_is_refused_as_lines_and_as_rows_of_spark() -> None:
    for table in (FRAME, pa.table({"a": ["x"]}), of_polars()):
        with pytest.raises(UsageError, match=r"lines must be text, not a table \(\w+\)\. Give it as items="):
            find_input(table, 1, "strict")
        with pytest.raises(UsageError, match=r"must be a DataFrame of Spark .*Give it as items="):
            find_rows({"orders": table})
    with pytest.raises(UsageError, match=r"not <LazyFrame .*Collect it first"):
        find_input(None, 1, "strict", items=pl.LazyFrame({"a": [1]}))


def test_a_table_without_pyarrow_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"rows of a polars DataFrame are read by pyarrow.*Install megaflow\[arrow\]"):
        find_input(None, 1, "strict", items=of_polars())
    assert [*FrameRows(FRAME)] == [{"price": 1}, {"price": 2}]


SCRIPT = """
import megaflow, polars as pl, pandas as pd

def add(user, price, total):
    total = (total or 0) + price
    return total, [(user, total)]

def dataflow(flow):
    return flow.items().map(lambda row: (row["user"], row["price"])).stateful_state_machine(add)

columns = {"user": ["ada", "bob", "ada"], "price": [1, 2, 3]}
for frame in (pl.DataFrame(columns), pd.DataFrame(columns)):
    print(sorted(megaflow.run(dataflow, items=frame, processes=2)))
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_a_script_gives_a_frame_as_items(tmp_path: Path) -> None:
    script = tmp_path / "frames.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=750, check=False)
    assert done.returncode == 0, done.stderr
    check_equal(done.stdout, "[('ada', 1), ('ada', 4), ('bob', 2)]\n" * 2, done.stderr)
