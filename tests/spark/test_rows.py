"""Rows of any DataFrame reach a program with the values of Spark's own Row, with and without Arrow."""

import json
import re
import socket
import sys
import threading
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import megaflow
from megaflow.errors import SourceError, StoreError, UsageError
from megaflow.job.worker.process.named_inputs import NamedInputs, RowShape
from megaflow.spark.fed_query import Contact, FedQuery
from megaflow.spark.query_spec import RowFrames, SparkSpec, parse_row_specs
from tests.cluster.processes import STATUS_SECONDS, Run
from tests.cluster.processes import wait_until as wait
from tests.cluster.test_web_page import printed_page
from tests.results import check_equal, comparing
from tests.spark.test_spark_source import Feed, Job, job, wait_until, want

__all__ = ["job"]  # a fixture

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type:UserWarning")]

SCHEMA = (
    "id LONG, small SHORT, ratio DOUBLE, half FLOAT, ok BOOLEAN, name STRING, raw BINARY, amount DECIMAL(10,2), "
    "at TIMESTAMP, wall TIMESTAMP_NTZ, day DATE, tags ARRAY<STRING>, days ARRAY<DATE>, counts MAP<STRING, LONG>, "
    "place STRUCT<city: STRING, seen: TIMESTAMP, inner: STRUCT<x: INT>>, nothing VOID"
)


@pytest.fixture(params=["rows", "arrow"])
def transfer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    want(request.param, monkeypatch)


def orders(flow: Any) -> Any:
    return flow.rows("orders")


def moment(text: str) -> int:
    """Return the microseconds of a local time, as in Spark's Row."""
    value = datetime.fromisoformat(text)
    return int(value.replace(microsecond=0).timestamp()) * 1_000_000 + value.microsecond


@pytest.mark.slow
def test_values_are_those_of_spark_rows(spark: Any, transfer: None) -> None:
    at = datetime(2026, 3, 29, 12, 30, 1, 250_001)
    given = [
        (1, -2, 0.5, 0.25, True, "ünï\n\0", b"\0\xff", Decimal("12.30"), at, at, date(1969, 12, 31), ["a", None],
         [date(1970, 1, 2), None], {"x": 1, "y": None}, ("Ulm", at, (5,)), None),
        (2,) + (None,) * 15,
        (2**63 - 1, 1, float("inf"), -0.0, False, "", b"", Decimal("-0.01"), datetime(1960, 1, 1), datetime(1, 1, 1),
         date(9999, 12, 31), [], [], {}, (None, None, None), None),
    ]  # fmt: skip
    frame = spark.createDataFrame(given, SCHEMA).coalesce(1)
    found = megaflow.run(orders, rows={"orders": frame})
    check_equal(len(found), len(given))
    with comparing():
        for row, mine in zip(frame.collect(), found, strict=True):
            assert type(mine) is tuple and len(mine) == len(row)
            for field, theirs, value in zip(frame.schema.fields, row, mine, strict=True):
                assert same(theirs, value), f"{field.name}: {theirs!r} {value!r}"
    micros = moment("2026-03-29T12:30:01.250001")
    check_equal(found[0][8:11], (micros, (at - datetime(1970, 1, 1)).total_seconds() * 10**6, -1))
    check_equal(found[0][12:15], ([1, None], {"x": 1, "y": None}, ("Ulm", micros, (5,))))


def same(theirs: Any, mine: Any) -> bool:
    """Whether a value equals that of Spark's Row, with datetimes and dates as numbers."""
    if isinstance(theirs, datetime):
        return type(mine) is int
    if isinstance(theirs, date):
        return bool(mine == theirs.toordinal() - 719_163)
    if isinstance(theirs, list | tuple):
        kind = tuple if isinstance(theirs, tuple) else list
        return type(mine) is kind and len(mine) == len(theirs) and all(map(same, theirs, mine))
    return bool(theirs == mine and (type(theirs) is type(mine) or (type(theirs) is bytearray and type(mine) is bytes)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "content", "why"),
    [
        ("parquet", b"neither parquet nor anything else", r"is not a Parquet file\. Expected magic number at tail"),
        ("json", b'{"id": 1}\n{"id": "x"}\n', r"Malformed records .* Cannot parse the field name 'id' and the value x"),
    ],
)
def test_a_file_that_spark_cannot_read_is_named_with_the_cause(
    spark: Any, tmp_path: Path, kind: str, content: bytes, why: str
) -> None:
    file = tmp_path / f"orders.{kind}"
    file.write_bytes(content)
    frame = spark.readStream.schema("id LONG").option("mode", "FAILFAST").format(kind).load(str(tmp_path))
    with pytest.raises(SourceError, match=f"^the DataFrame of rows 'orders': .* reading file .*{file.name}. .*{why}"):
        megaflow.run(orders, rows={"orders": frame})


@pytest.mark.slow
def test_a_stream_prepared_in_sql_is_folded_each_row_once(tmp_path: Path, spark: Any) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    for number in range(3):
        lines = [json.dumps({"id": id, "at": "2026-01-01T00:00:00Z"}) for id in range(number * 100, number * 100 + 100)]
        (folder / f"{number}.json").write_text("\n".join(lines))

    def dataflow(flow: Any) -> Any:
        def count(key: int, at: int, total: int | None) -> tuple[int, list[Any]]:
            total = (total or 0) + 1
            return total, [(key, total, at)]

        pairs = flow.rows("orders", as_=dict).map(lambda row: (row["key"], row["at"]))
        return pairs.stateful_state_machine(count)

    prepared = "where=id >= 50&select=id %25 10 AS key, at&trigger=availableNow"
    spec = f"spark:json:{folder}?schema=id LONG, at TIMESTAMP&{prepared}"
    found = megaflow.run(dataflow, rows={"orders": spec}, processes=2)
    check_equal(sorted(found), [(key, total, 1_767_225_600_000_000) for key in range(10) for total in range(1, 26)])


@pytest.mark.slow
def test_status_and_page_name_the_rows_that_have_yet_to_come(tmp_path: Path) -> None:
    app, folder = tmp_path / "app.py", tmp_path / "in"
    app.write_text('def dataflow(flow):\n    return flow.rows("orders")\n')
    folder.mkdir()
    rows = f"orders=spark:json:{folder}?schema=id LONG"
    run = Run(tmp_path, str(app), "--rows", rows, "--output", "none", "--name", "fed", "--web", "0")
    try:
        run.status_when(lambda record: "waits for Spark" in record.get("output", ""))
        wait(lambda: "first rows" in run.status().get("output", ""), 2 * STATUS_SECONDS)
        waits = run.status()["output"]
        assert re.fullmatch(r"waits for Spark since \d\d:\d\d:\d\d: the first rows of 'orders'", waits)
        assert waits in run.control("status").stdout
        with printed_page(run.process).viewer() as viewer:
            viewer.shows(lambda document: document.get("status", {}).get("output") == waits)
            (tmp_path / "row.json").write_text('{"id": 7}')
            (tmp_path / "row.json").rename(folder / "row.json")
            viewer.shows(lambda document: "output" not in document["status"] and document["workers"]["0"]["lines"] == 1)
            entries = [each for each in viewer.document["timeline"].values() if each["title"] == waits]
            assert [each["kind"] for each in entries] == ["waiting"]
        assert run.control("stop").returncode == 0
        assert run.end()[0] == 0
        assert not any("waits for Spark" in line for line in run.said), "it is no news that Spark takes time to start"
    finally:
        run.process.finish()


def both(flow: Any) -> Any:
    return flow.rows("orders").map(lambda row: ("order", *row)).concat(flow.rows("views", as_=View).map(tuple))


class View(NamedTuple):
    page: str
    id: int


@pytest.mark.slow
def test_two_batch_frames_are_read_beside_each_other_and_end_the_job(spark: Any) -> None:
    views = spark.range(3).selectExpr("id", "concat('page ', id) AS page")
    found = megaflow.run(both, rows={"orders": spark.range(50), "views": views}, processes=2)
    check_equal(sorted(found), [("order", id) for id in range(50)] + [(f"page {id}", id) for id in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "orc", "csv", "json"])
def test_files_are_read_as_rows_and_go_on_where_a_checkpoint_was(spark: Any, tmp_path: Path, kind: str) -> None:
    folder, state = tmp_path / "in", tmp_path / "state"
    spec = f"spark:{kind}:{folder}?schema=k INT, v DOUBLE&trigger=availableNow"

    def dataflow(flow: Any) -> Any:
        return flow.rows(flow.args[0]).stateful_state_machine(total, name="total")

    def total(k: int, v: float, before: float | None) -> tuple[float, list[Any]]:
        return (before or 0) + v, [(k, (before or 0) + v)]

    for run in range(2):
        frame = spark.createDataFrame([(k, 1.0) for k in range(3)] * 4, "k INT, v DOUBLE")
        frame.coalesce(1).write.mode("append").format(kind).save(str(folder))
        found = megaflow.run(dataflow, rows={"orders": spec}, state=state, args=["orders"])
        check_equal(sorted(found), [(k, 4.0 * run + v) for k in range(3) for v in (1.0, 2.0, 3.0, 4.0)])
    with pytest.raises(StoreError, match="belongs to the rows 'orders'"):
        megaflow.run(dataflow, rows={"sales": spec}, state=state, args=["sales"])


@pytest.mark.slow
def test_groups_that_have_changed_come_with_each_batch(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.json").write_text("".join(f'{{"k": {k}}}\n' for k in range(number, 3)))
    options = "schema=k INT&select=k, count(*) AS n&where=true GROUP BY k&maxFilesPerTrigger=1&trigger=availableNow"
    found = megaflow.run(orders, rows={"orders": f"spark:json:{folder}?{options}"})
    check_equal(sorted(found), [(0, 1), (1, 1), (1, 2), (2, 1), (2, 2)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("spark:kafka:?kafka.bootstrap.servers=h:1&subscribe=t", "spark:kafka:: Failed to find data source: kafka"),
        (
            "spark:json:{}",
            r"no columns until you name them: .*'orders=spark:json:\S+\?schema=id LONG, name STRING'",
        ),
        ("spark:json:{}?schema=k INT&select=nope", "parameter with name `nope` cannot be resolved"),
        (
            "spark:json:{}?schema=k INT&select=INTERVAL 1 DAY AS w",
            "column 'w' of type interval day, which cannot",
        ),
    ],
)
def test_what_spark_cannot_read_is_one_line(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], spec: str, why: str
) -> None:
    with pytest.raises((SourceError, UsageError), match=why) as raised:
        megaflow.run(orders, rows={"orders": spec.format(tmp_path)})
    assert "\n" not in str(raised.value) and "Traceback" not in capfd.readouterr().err


def test_an_error_of_a_frame_is_not_its_own_cause() -> None:
    query = FedQuery("no frame", Contact(("host", 7), b""), "orders")
    with pytest.raises(UsageError) as raised:
        query.open(None)
    assert raised.value.__cause__ is None, "the command looks for notes of all causes"


@pytest.mark.slow
def test_streams_without_an_end_are_read_until_the_job_stops(spark: Any, job: Job) -> None:
    inputs = NamedInputs(("numbers", "words"))
    for name in ("numbers", "words"):
        inputs.read(name, RowShape())
    for staging in job.stagings.values():
        staging.unpack = inputs.unpack
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=lambda: server.accept()[0].sendall(b"to\nbe\n"), daemon=True).start()
        specs = [f"words=spark:socket:?host=127.0.0.1&port={port}", "numbers=spark:rate:?rowsPerSecond=5&select=value"]
        with Feed(RowFrames(parse_row_specs(specs)), job) as feed:
            wait_until(lambda: {("to",), ("be",), (0,), (7,)} <= set(map(tuple, job.lines)) or feed.done)
    assert feed.error is None
    check_equal(Counter(map(tuple, job.lines))[7,], 1)  # type: ignore[index]


def test_executors_with_another_python_are_told_with_the_remedy() -> None:
    query = FedQuery(SparkSpec("json", "in/"), Contact(("h", 1), b""), "orders")
    for text in ("… ModuleNotFoundError: No module named 'megaflow'", "[PYTHON_VERSION_MISMATCH] Python in worker …"):
        error = query.explain(RuntimeError(text))
        assert "which is not this Python" in str(error) and f"Set PYSPARK_PYTHON={sys.executable} before" in str(
            error
        )


@pytest.mark.slow
def test_a_session_whose_executors_have_no_megaflow_is_told_so(spark: Any, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'raise SystemExit(\"No module named megaflow\")'\n")
    bare.chmod(0o755)
    context, before = spark.sparkContext, spark.sparkContext.pythonExec
    context.pythonExec = str(bare)
    try:
        with pytest.raises(SourceError, match="which is not this Python"):
            megaflow.run(orders, rows={"orders": spark.range(3)})
    finally:
        context.pythonExec = before
