"""Results of a job as a streaming DataFrame: a Spark data source in Python, which asks the launcher.

Its classes travel by value, like `worker_jobs.in_task`. In Spark's processes they first find megaflow, either shipped
or installed on this machine. The secret is in the closure, so no plan shows it.
`megaflow.job.launcher.outputs.results_log` defines offsets, and explains why each row is read once.

The planning reader lives in a process of the driver as long as its query runs. Before it reports that there are no more
rows, it waits a moment, because Spark asks again at once. With `availableNow` it waits until there are more or the job
has ended: the job's end defines "now". With another trigger the query idles after that. So the reader remembers that
the job has ended, and stops asking the launcher, which may be gone.

A frame may observe the job's figures (`ResultsPlace.observe`). For this it has a hidden last column. It is null except
in the first row of a batch, where it has the figures. Spark's metrics take the maximum of each.
"""

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgpack
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from megaflow.quick_dataclass import dataclass
from megaflow.spark.shipping import serve, ship

Address: TypeAlias = tuple[str, int]

POLL_SECONDS: Final = 0.2
ANSWER_SECONDS: Final = 60.0
OPEN_SECONDS: Final = 900.0  # for the job of a stateful frame to start
CONNECT_SECONDS: Final = 10.0
CLAIM_SECONDS: Final = 15.0  # for the connection of the previous query to end
ROWS_A_PART: Final = 50_000
PARTS_MAX: Final = 8  # of a batch; each part becomes a file if the batch is written to files
ROWS_A_BATCH: Final = 10_000  # rows of an Arrow batch
FIGURES: Final = "_megaflow"  # the hidden column
COUNTS: Final = "rows_in", "rows_out", "state_rows", "state_bytes", "late_rows", "restarts", "workers"
WATERMARK: Final = "watermark"
HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"  # Spark's variable for its Python processes


@dataclass(frozen=True)
class Code:
    """Where a process of Spark finds megaflow."""

    libraries: tuple[str, ...] = ()  # the folders on this machine of megaflow and of the packages that it imports
    archive: str = ""  # name of the shipped file on executors; "" if nothing was shipped


@dataclass(frozen=True)
class ResultsPlace:
    """Location of a job's results. Travels by value."""

    job: str  # "": the launcher's side knows it when a query begins, see `job.launcher.run.spark_stateful`
    addresses: tuple[Address, ...]  # of the launcher's door, the likeliest first
    schema: str  # as `StructType.json` writes it
    secret: bytes = field(repr=False)
    code: Code = Code()
    consumer: str = ""  # name of a program that did not start the job; "": the program did
    holder: str = ""  # that program, for errors
    observe: str = ""  # name of the figures in Spark's metrics; "": there are none


def results_frame(session: SparkSession, place: ResultsPlace) -> DataFrame:
    """Return the streaming DataFrame. Only one query may read it; it may be restarted with its checkpoint."""
    place = reachable_place(session, place)
    return register_source(session, f"{source_name(place.job)}_{uuid.uuid4().hex}", place)


def register_source(session: SparkSession, name: str, place: ResultsPlace) -> DataFrame:
    """Return the streaming DataFrame of a data source that gets this name."""
    session.dataSource.register(source_class(name, place))
    frame = session.readStream.format(name).load()
    if not place.observe:
        return frame
    from pyspark.sql.functions import col, max

    newest = [max(col(f"{FIGURES}.{name}")).alias(name) for name in (*COUNTS, WATERMARK)]
    return frame.observe(place.observe, *newest).drop(FIGURES)


def reachable_place(session: SparkSession, place: ResultsPlace) -> ResultsPlace:
    """Return the place for Spark's processes, which can then find megaflow."""
    return replace(place, code=reachable_code(session))


def reachable_code(session: SparkSession) -> Code:
    """Return where the processes of a session find megaflow, after shipping it to executors on other machines."""
    archive = ""
    if not str(session.sparkContext.master).startswith("local"):
        with tempfile.TemporaryDirectory(prefix="megaflow-results-") as folder:
            archive, path = ship(Path(folder), None, ())
            serve(session.sparkContext, archive, path)
    libraries = tuple(dict.fromkeys((str(Path(__file__).parents[2]), str(Path(msgpack.__file__).parents[1]))))
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    return Code(libraries, archive)


def source_name(job: str) -> str:
    """Return the beginning of the data source's name for the results of a job. Spark's plans contain it."""
    return f"megaflow_{job}"


class JobError(ValueError):
    """Error of a query with a text that has the whole reason, so that Spark shows it without a traceback."""

    __module__ = "megaflow"  # Spark shows it with the name


def reader_class() -> Any:
    """Return the class of a query's reader.

    Make it in the driver: a function that travels lacks the names that only its annotations use.
    """
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

    more: tuple[type, ...] = ()
    with suppress(ImportError):  # not before Spark 4.2
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

        more = (SupportsTriggerAvailableNow,)

    class Reader(DataSourceStreamReader, *more):  # type: ignore[misc]
        """Plans in the driver, reads in tasks."""

        def __init__(self, place: ResultsPlace) -> None:
            self._from = place
            self._poll = Poll(place)
            self._last: int | None = None  # the end of the previous batch, if known

        def initialOffset(self) -> dict[str, Any]:
            return {"job": self._poll.job(), "rows": 0}

        def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
            after = self._last if start is None else self._place(start)
            self._last = self._poll.latest(after)
            return {"job": self._poll.job(), "rows": self._last}

        def prepareForTriggerAvailableNow(self) -> None:
            self._poll.until_ended = True

        def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
            pieces = parts(self._place(start), last := self._place(end))
            if not (self._from.observe and pieces):
                return [InputPartition((*piece, None)) for piece in pieces]
            figures = self._poll.figures(last)
            return [InputPartition((*piece, None if at else figures)) for at, piece in enumerate(pieces)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return read_rows(self._from, *partition.value)

        def stop(self) -> None:
            """Close the connection. Spark also calls this when an error ends the query and this process."""
            if isinstance(sys.exc_info()[1], JobError):
                os.environ[HIDE_TRACEBACK] = "1"
            self._poll.close()

        def _place(self, offset: dict[str, Any]) -> int:
            if offset["job"] != (job := self._poll.job()):
                raise JobError(
                    f"This checkpoint has read the results of another job, {offset['job']}, not those of "
                    f"{job}. Give the query its own checkpointLocation; if both are to resume, also give "
                    "the job a store."
                )
            return int(offset["rows"])

    return Reader


def source_class(named: str, place: ResultsPlace) -> Any:
    """Return the class of a data source for one job."""
    from pyspark.sql.datasource import DataSource

    reader = reader_class()

    class Results(DataSource):
        """The results of one job."""

        @classmethod
        def name(cls) -> str:
            return named

        def schema(self) -> Any:
            return spark_schema(place)

        def streamReader(self, schema: Any) -> Any:
            return reader(place)

    return Results


def spark_schema(place: ResultsPlace) -> Any:
    """Return the columns as Spark's StructType."""
    import json

    from pyspark.sql.types import LongType, StringType, StructField, StructType

    columns = StructType.fromJson(json.loads(place.schema))
    if place.observe:
        counts = [StructField(name, LongType()) for name in COUNTS]
        columns.add(FIGURES, StructType([*counts, StructField(WATERMARK, StringType())]))
    return columns


class Poll:
    """Asks the launcher for the newest place, for the planning reader. Travels by value before it is used."""

    def __init__(self, place: ResultsPlace) -> None:
        self.until_ended = False  # whether to wait for more rows or the end
        self._place = place
        self._door: Any = None
        self._number = 0
        self._is_over = False  # the job has ended, and everything is read
        self._job = place.job

    def job(self) -> str:
        """Return the job's id. For a stateful frame this starts the job, and blocks until it has started."""
        if not self._job:
            find_megaflow(self._place.code)
            from megaflow.control.results_messages import Open

            self._door = connect(self._place)
            self._door.send(Open())
            self._job = str(checked(self._door.receive(OPEN_SECONDS)).job)
        return self._job

    def latest(self, after: int | None) -> int:
        """Return where the next batch ends. If there is nothing more after a moment, this is where it begins."""
        find_megaflow(self._place.code)
        self.job()
        deadline = time.monotonic() + POLL_SECONDS
        while not self._is_over:
            answer = self._ask(after)
            if answer is not None and (answer.place > (after or 0) or answer.ended):
                self._is_over = answer.ended
                return int(answer.place)
            if not self.until_ended and time.monotonic() >= deadline:
                return after or 0
        time.sleep(POLL_SECONDS)
        return after or 0

    def _ask(self, after: int | None) -> Any:
        """Return the launcher's answer, None if there is none for a while. An earlier answer counts if it was the last.
        """
        from megaflow.control.results_messages import Latest

        self._door = self._door or claimed(self._place)
        for answer in map(checked, self._door.receive_available()):  # the launcher may be gone after its last answer
            if answer.ended:
                return answer
        self._number += 1
        self._door.send(Latest(self._number, after))
        return awaited(self._door, self._number)

    def figures(self, rows_out: int) -> dict[str, Any]:
        """Return the job's figures, as far as they are known, at the end of a batch."""
        find_megaflow(self._place.code)
        from megaflow.control.results_messages import AskFigures, JobFigures

        self._door = self._door or claimed(self._place)
        self._door.send(AskFigures())
        answer = None
        while type(answer) is not JobFigures:
            answer = checked(self._door.receive(ANSWER_SECONDS))
            self._is_over = self._is_over or getattr(answer, "ended", False)
        return {"rows_out": rows_out, **{name: getattr(answer, name) for name in answer.__slots__}}

    def close(self) -> None:
        """Close the connection."""
        if self._door is not None:
            self._door.close()


def find_megaflow(code: Code) -> None:
    """Make megaflow importable in a process of Spark: the shipped files, or those on this machine."""
    from pyspark import SparkFiles

    if code.archive:
        folder = os.path.join(SparkFiles.getRootDirectory(), code.archive)
        library = os.path.join(folder, "lib")
        if os.path.isdir(library) and library not in sys.path:
            for name in [name for name in sys.modules if name.partition(".")[0] == "megaflow"]:
                del sys.modules[name]  # perhaps of another version
            sys.path.insert(0, library)
            sys.path.append(os.path.join(folder, "deps"))
    sys.path += [folder for folder in code.libraries if folder not in sys.path and os.path.isdir(folder)]


def connect(place: ResultsPlace) -> Any:
    """Return a connection to the launcher."""
    from megaflow.control.results_messages import RESULTS_ROLE
    from megaflow.timely.communication.client import Client

    troubles = []
    for host, port in place.addresses:
        try:
            return Client.connect(host, port, place.secret, RESULTS_ROLE, {}, CONNECT_SECONDS)
        except OSError as error:
            troubles.append(f"{host}:{port} ({error.strerror or error})")
    places = ", ".join(troubles)
    raise JobError(f"The job's launcher does not answer at {places}: it has ended, or cannot be reached from here.")


def claimed(place: ResultsPlace) -> Any:
    """Return a connection to the launcher that may ask for the newest place."""
    from megaflow.control.results_messages import Claim

    door, deadline = connect(place), time.monotonic() + CLAIM_SECONDS
    while place.consumer:
        door.send(Claim(place.consumer, place.holder))
        if not (taken := checked(door.receive(ANSWER_SECONDS)).taken):
            break
        if time.monotonic() >= deadline:
            door.close()
            raise JobError(taken)
        time.sleep(POLL_SECONDS)
    return door


def checked(answer: Any) -> Any:
    """Return the answer. Raises JobError with the launcher's reason if it refused the question."""
    from megaflow.control.results_messages import ResultsRefused

    if type(answer) is ResultsRefused:
        raise JobError(answer.reason)
    return answer


def awaited(door: Any, number: int) -> Any:
    """Return the answer to a question, or the answer that the rows have ended. None if none arrives for a while."""
    deadline = time.monotonic() + POLL_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            answer = checked(door.receive(left))
        except TimeoutError:
            return None
        if answer.number == number or answer.ended:
            return answer
    return None


def parts(start: int, end: int) -> list[tuple[int, int]]:
    """Divide a batch into the parts that its tasks read.

    >>> parts(10, 20), len(parts(0, 10**6)), parts(0, 100_001)[-1]
    ([(10, 20)], 8, (66668, 100001))
    """
    count = max(1, min(PARTS_MAX, -(-(end - start) // ROWS_A_PART)))
    size = -(-(end - start) // count)
    return [(at, min(at + size, end)) for at in range(start, end, size or 1)]


def read_rows(place: ResultsPlace, start: int, end: int, figures: dict[str, Any] | None = None) -> Iterator[Any]:
    """Yield rows as Arrow record batches, the first with the figures. Runs in a task of Spark."""
    find_megaflow(place.code)
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        schema = to_arrow_schema(spark_schema(place), timezone="UTC")
    except TypeError:  # before Spark 4.2
        schema = to_arrow_schema(spark_schema(place))
    kinds = [kind.type for kind in schema]
    hidden = kinds.pop() if place.observe else None
    found: list[list[Any]] = [[] for _ in kinds]
    for columns in read_columns(place, start, end):
        start += len(columns[0])
        for values, more in zip(found, columns):
            values += more
        if start == end or len(found[0]) >= ROWS_A_BATCH:
            arrays = [pyarrow.array(values, kind) for values, kind in zip(found, kinds)]
            if hidden is not None:
                noted = [] if figures is None else [figures]
                blank = pyarrow.nulls(len(found[0]) - len(noted), hidden)
                arrays.append(pyarrow.concat_arrays([pyarrow.array(noted, hidden), blank]))
                figures = None
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
            found = [[] for _ in kinds]


def read_tuples(place: ResultsPlace, pieces: Iterable[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
    """Yield rows as tuples, from which Spark makes rows. Runs in a task of Spark, without Arrow."""
    find_megaflow(place.code)
    import json

    from megaflow.rows.row_values import as_rows

    converters = [as_rows(field["type"]) for field in json.loads(place.schema)["fields"]]
    for start, end in pieces:
        for columns in read_columns(place, start, end):
            yield from zip(*[map(make, values) if make else values for make, values in zip(converters, columns)])


def read_columns(place: ResultsPlace, start: int, end: int) -> Iterator[list[list[Any]]]:
    """Yield the columns of each pack of rows in turn."""
    from megaflow.control.results_messages import Take
    from megaflow.rows.result_rows import unpack

    with connect(place) as door:
        while start < end:
            door.send(Take(start))
            pack = checked(door.receive(ANSWER_SECONDS))
            columns = [values[start - pack.start : end - pack.start] for values in unpack(pack.data)]
            yield columns
            start += len(columns[0])
