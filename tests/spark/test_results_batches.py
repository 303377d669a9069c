"""Results without Arrow: each batch goes into its own folder, and each row into one of them, despite rewrites."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")

from megaflow.durable.local_folder import SPARK
from megaflow.errors import UsageError
from megaflow.job.launcher.outputs.spark_results import SparkResults
from megaflow.rows.ddl import parse_ddl, schema_json
from megaflow.rows.result_rows import RowPacker
from megaflow.spark import results_batches, results_query, results_spec
from megaflow.spark.results_query import QUERY, running_query
from megaflow.spark.results_spec import parse_results_spec

WAIT_SECONDS = 90.0
COLUMNS = "word string, share double, seen map<string, long>"
SPEC = parse_results_spec(f"spark:json:out?schema={COLUMNS}")
PACKER = RowPacker(schema_json(parse_ddl(COLUMNS)))


class Session:
    """A Spark session without parallelism, in which a folder is a list."""

    def __init__(self) -> None:
        self.sparkContext = MagicMock(master="local[1]")
        self.sparkContext.getConf.return_value.get.return_value = "127.0.0.1"
        self.sparkContext.parallelize = self._parallelize
        self.conf = MagicMock(get={"spark.sql.session.timeZone": "UTC"}.get)
        self.folders: dict[str, list[tuple[Any, ...]]] = {}

    def _parallelize(self, pieces: list[Any], number: int) -> Any:
        assert len(pieces) == number
        return MagicMock(mapPartitions=lambda function: list(function(iter(pieces))))

    def createDataFrame(self, rows: Iterable[tuple[Any, ...]], schema: Any, verifySchema: bool) -> Any:
        frame = MagicMock()
        writer = frame.write.format.return_value.options.return_value.mode
        writer.return_value.save = lambda path: self.folders.__setitem__(path, list(rows))
        return frame


@contextmanager
def writing(
    session: Session, state: Path, monkeypatch: pytest.MonkeyPatch, committed: int | None = None
) -> Iterator[SparkResults]:
    """A job with a store, which resumes from a commit with `committed` rows, and whose results are written."""

    @contextmanager
    def given(folder: Path, held: Any, report: Any) -> Iterator[Session]:
        yield session

    monkeypatch.setattr("megaflow.spark.spark_session.spark_session", given)
    monkeypatch.setattr(results_spec, "ARROW", ("no_such_arrow",))
    (state / SPARK).mkdir(parents=True, exist_ok=True)
    results = SparkResults(
        SPEC.schema, str(SPEC), str(state), committed is not None, lambda served: running_query(SPEC, served)
    )
    results.hold()
    try:
        if committed is not None:
            results.cut_back(committed)  # before any reader can ask, as when a job is resumed
        with results.served(b"secret", lambda error: None):
            yield results
    finally:
        results.close()


def put(results: SparkResults, *words: str) -> None:
    """Emit rows, and commit them."""
    results.write(1, [PACKER.pack([(word, 2, {word: 1}) for word in words])])
    results.committed(results.sync())


def words(session: Session) -> list[str]:
    return [row[0] for folder in sorted(session.folders) for row in session.folders[folder]]


def test_each_row_is_in_one_folder_though_a_batch_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    with writing(session, tmp_path, monkeypatch) as results:
        put(results, "a", "b")
        results.await_read(time.sleep)
    assert session.folders == {"out/from_row=000000000000000": [("a", 2.0, {"a": 1}), ("b", 2.0, {"b": 1})]}

    died = threading.Event()
    noted = results_batches.note

    def die(path: Path, rows: int) -> None:
        if rows > 2:
            died.set()
            raise RuntimeError("killed")
        noted(path, rows)

    monkeypatch.setattr(results_batches, "note", die)
    with writing(session, tmp_path, monkeypatch, 2) as results:
        put(results, "c")
        assert died.wait(WAIT_SECONDS)
    assert words(session) == ["a", "b", "c"]

    monkeypatch.setattr(results_batches, "note", noted)
    with writing(session, tmp_path, monkeypatch, 3) as results:
        put(results, "d", "e")
        results.await_read(time.sleep)
    assert words(session) == ["a", "b", "c", "d", "e"]


def test_a_store_that_began_with_arrow_is_not_gone_on_with_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(Session(), tmp_path, monkeypatch) as results:
        (results.folder / QUERY).mkdir()
        (results.folder / results_query.NOTED).unlink()
    why = r"it began with Arrow: .*no_such_arrow cannot be imported here"
    with pytest.raises(UsageError, match=why), writing(Session(), tmp_path, monkeypatch, 0):
        pytest.fail("it goes on")


def test_what_is_no_folder_of_files_needs_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_spec, "ARROW", ("no_such_arrow",))
    monkeypatch.setattr(results_spec, "check_installation", lambda: None)
    results_spec.check_results(SPEC)
    with pytest.raises(UsageError, match="no_such_arrow cannot be imported"):
        results_spec.check_results(parse_results_spec("spark:noop?schema=n long"))
