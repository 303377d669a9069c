"""Times that Python's datetimes cannot hold, and naive ones: to and from a real Spark, as `docs/spark.md` has them.

The processes of the job have another time zone than the session.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import SourceError
from tests.cluster.processes import Run, wait_until
from tests.results import check_equal
from tests.spark.test_spark_source import want

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WAIT_SECONDS = 800.0
BERLIN, ELSEWHERE = "Europe/Berlin", "Asia/Tokyo"


def zoned(spark: Any, zone: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.sparkContext.environment["TZ"] = ELSEWHERE  # of the Python processes
    yield
    del spark.sparkContext.environment["TZ"]
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def in_berlin(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", ELSEWHERE)
    yield from zoned(spark, BERLIN)


@pytest.fixture(params=["America/New_York", "Asia/Tokyo"])
def far_away(spark: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    yield from zoned(spark, request.param)


APP = """
from datetime import UTC, date, datetime
ROWS = {rows}
def dataflow(flow):
    return flow.lines().map(lambda line: ROWS[int(line)])
"""


@pytest.mark.parametrize("transfer", ["arrow", "rows"])
@pytest.mark.usefixtures("in_berlin")
def test_spark_writes_times_as_documented(
    spark: Any, tmp_path: Path, transfer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.control.test_result_rows import CELLS  # reads the documentation, which workers do not have

    want(transfer, monkeypatch)
    fine = [(n, *cell) for n, cell in enumerate(CELLS) if not cell[2].startswith("refused")]
    rows = ", ".join(
        f"({n}, {value if kind == 'TIMESTAMP' else None}, {value if kind == 'TIMESTAMP_NTZ' else None}, "
        f"{value if kind == 'DATE' else None}, [{value if kind == 'TIMESTAMP' else None}, None])"
        for n, value, kind, _ in fine
    )
    (tmp_path / "app.py").write_text(APP.format(rows=f"[{rows}]"))
    (tmp_path / "lines.txt").write_text("".join(f"{n}\n" for n in range(len(fine))))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"spark.sql.session.timeZone {BERLIN}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    columns = "n INT, at TIMESTAMP, wall TIMESTAMP_NTZ, day DATE, several ARRAY<TIMESTAMP>"
    output, lines = f"spark:parquet:{tmp_path}/out?schema={columns}", str(tmp_path / "lines.txt")
    run = Run(tmp_path, str(tmp_path / "app.py"), "--lines", lines, "--output", output)
    try:
        ended = run.process.end(WAIT_SECONDS)
    finally:
        run.process.finish()
    assert ended.code == 0, ended.errors
    texts = [f"CAST({name} AS STRING)" for name in ("at", "wall", "day", "several")]
    found = {n: each for n, *each in spark.read.parquet(str(tmp_path / "out")).selectExpr("n", *texts).collect()}
    for n, value, kind, text in fine:
        several = f"[{text}, null]" if kind == "TIMESTAMP" else "[null, null]"
        wanted = [text if kind == each else None for each in ("TIMESTAMP", "TIMESTAMP_NTZ", "DATE")]
        check_equal((value, kind, found[n]), (value, kind, [*wanted, several]))


LATEST, FIRST = 2**63 - 1, -(2**63)
FAR = f"""
    TIMESTAMP'9999-12-31 23:59:59' AS mark, timestamp_micros({LATEST}) AS latest,
    TIMESTAMP_NTZ'-0044-03-15 02:30:00.000001' AS ides, DATE'-0044-03-15' AS day,
    array(TIMESTAMP'9999-12-31 23:59:59', NULL, TIMESTAMP'0001-01-01 00:00:00') AS several,
    map(TIMESTAMP_NTZ'+10000-01-01 00:00:00', array(DATE'+10000-01-01'), TIMESTAMP_NTZ'2026-03-08 02:30:00', NULL) AS m,
    named_struct('x', TIMESTAMP_NTZ'2026-03-29 02:30:00', 'X', 5, 'y',
        named_struct('z', timestampadd(MICROSECOND, {FIRST}, TIMESTAMP_NTZ'1970-01-01'), 'w', CAST(NULL AS DATE))) AS s,
    CAST(NULL AS STRUCT<x: TIMESTAMP>) AS no_row, CAST(NULL AS ARRAY<DATE>) AS no_array
"""
OFFSETS = {"America/New_York": 5 * 3600, "Asia/Tokyo": -9 * 3600}  # in the year 9999
FIRST_OFFSETS = {"America/New_York": 17762, "Asia/Tokyo": -33539}  # in the year 1


def rows_of(flow: Any) -> Any:
    return flow.rows("far")


def as_datetimes(flow: Any) -> Any:
    return flow.rows("far", timestamps="datetime")


@pytest.mark.parametrize("transfer", ["arrow", "rows"])
@pytest.mark.usefixtures("far_away")
def test_times_of_all_years_are_ints_at_any_depth(spark: Any, transfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    want(transfer, monkeypatch)
    zone = spark.conf.get("spark.sql.session.timeZone")
    mark = (253_402_300_799 + OFFSETS[zone]) * 1_000_000
    year_1 = (-62_135_596_800 + FIRST_OFFSETS[zone]) * 1_000_000
    [row] = megaflow.run(rows_of, rows={"far": spark.sql(f"SELECT {FAR}")})
    check_equal(row[:4], (mark, LATEST, -63_549_350_999_999_999, -735_525))
    check_equal(row[4], [mark, None, year_1])
    check_equal(row[5], {253_402_300_800_000_000: [2_932_897], 1_772_937_000_000_000: None})
    check_equal(row[6:], ((1_774_751_400_000_000, 5, (FIRST, None)), None, None))


def test_a_datetime_that_python_cannot_hold_is_named(spark: Any) -> None:
    frame = spark.sql("SELECT 1 AS n, array(struct(timestamp_micros(253402318799000000) AS x)) AS seen")
    with pytest.raises(SourceError, match=r"The rows 'far' have .*253402318799000000.*'seen' of the row \(1, "):
        megaflow.run(as_datetimes, rows={"far": frame})


def through(key: Any, row: Any, state: Any) -> Any:
    """Give a row's times back as they came."""
    return 1, [(row[0], row[1], row[2], row[3], (row[4][0],))]


TEXTS = ["CAST(at AS STRING)", "CAST(wall AS STRING)", "CAST(day AS STRING)", "CAST(nested.x AS STRING)"]
HELD = "2026-06-01 12:00:00.123456", "2026-03-08 03:30:00", "9999-12-31 23:59:59", "0001-01-01 00:00:00"
UNHELD = "+10000-01-01 00:00:00", "-0044-03-15 00:00:00"


@pytest.mark.parametrize("tuples", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.usefixtures("far_away")
def test_a_fold_gets_and_gives_times_of_the_session(spark: Any, tmp_path: Path, is_stream: bool, tuples: bool) -> None:
    given = dict(enumerate(HELD + UNHELD if tuples else HELD))
    check_equal(folded(spark, tmp_path, given, is_stream, tuples), {
        n: (text, text, text.partition(" ")[0], text) for n, text in given.items()
    })  # fmt: skip


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.usefixtures("far_away")
def test_a_fold_on_rows_names_a_time_that_python_cannot_hold(spark: Any, tmp_path: Path, is_stream: bool) -> None:
    with pytest.raises(Exception, match=r"The column 'at' has 25340\d+, .* in the row \(0, 25340\d+, .*tuples=True"):
        folded(spark, tmp_path, {0: UNHELD[0]}, is_stream, tuples=False)


def folded(spark: Any, tmp_path: Path, given: dict[int, str], is_stream: bool, tuples: bool) -> dict[int, Any]:
    """Return what `through` has given for these texts."""
    rows = ", ".join(f"({n}, '{text}')" for n, text in given.items())
    columns = (
        "n, CAST(t AS TIMESTAMP) AS at, CAST(t AS TIMESTAMP_NTZ) AS wall, CAST(CAST(t AS TIMESTAMP) AS DATE) AS day, "
        "named_struct('x', CAST(t AS TIMESTAMP)) AS nested"
    )
    whole = spark.sql(f"SELECT {columns} FROM VALUES {rows} AS given(n, t)")
    whole.coalesce(1).write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema(whole.schema) if is_stream else spark.read
    frame = source.parquet(str(tmp_path / "in"))
    schema = "n INT, at TIMESTAMP, wall TIMESTAMP_NTZ, day DATE, nested STRUCT<x: TIMESTAMP>"
    result = megaflow.spark.stateful(frame.groupBy("n"), through, schema, tuples=tuples)
    if is_stream:
        writer = result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = result.megaflow.start_query(writer.trigger(availableNow=True).format("parquet").option(
            "path", str(tmp_path / "out")).start)  # fmt: skip
        wait_until(lambda: not query.isActive, WAIT_SECONDS)
        if (error := query.exception()) is not None:
            raise error
        result = spark.read.parquet(str(tmp_path / "out"))
    return {n: tuple(each) for n, *each in result.selectExpr("n", *TEXTS).collect()}
