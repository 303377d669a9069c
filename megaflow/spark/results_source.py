"""A job's results as a streaming DataFrame: a Spark data source in Python, which asks the launcher.

Its classes travel by value, as `worker_jobs.in_task` does. In Spark's processes they first find megaflow, as shipped or
as installed on this machine. The secret is in the closure, so no plan shows it. `megaflow.job.launcher.results_log`
defines offsets, and explains why each row is read once.

The planning reader lives in a process of the driver as long as its query runs. Before it reports that there is no more,
it waits a moment, since Spark asks again at once. With `availableNow` it waits until there is more or the job has
ended: the job's end defines "now".
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
CONNECT_SECONDS: Final = 10.0
ROWS_A_PART: Final = 50_000
PARTS_MAX: Final = 8  # of a batch: files, where it is written to some
ROWS_A_BATCH: Final = 10_000  # of Arrow's


@dataclass(frozen=True)
class ResultsPlace:
    """Where the results of a job are. Travels by value."""

    job: str
    addresses: tuple[Address, ...]  # of the launcher's door, the likeliest first
    schema: str  # as `StructType.json` writes it
    secret: bytes = field(repr=False)
    libraries: tuple[str, ...] = ()  # the folders of megaflow on this machine, and of what it imports
    archive: str = ""  # what was shipped, as executors know it; "" if nothing was


def results_frame(session: SparkSession, place: ResultsPlace) -> DataFrame:
    """Return the streaming DataFrame. To be read by one query, which may be started again with its checkpoint."""
    place = reachable_place(session, place)
    name = f"{source_name(place.job)}_{uuid.uuid4().hex}"
    session.dataSource.register(source_class(name, place))
    return session.readStream.format(name).load()


def reachable_place(session: SparkSession, place: ResultsPlace) -> ResultsPlace:
    """Return the place for processes of Spark's, which find there where megaflow is."""
    archive = ""
    if not str(session.sparkContext.master).startswith("local"):
        with tempfile.TemporaryDirectory(prefix="megaflow-results-") as folder:
            archive, path = ship(Path(folder), None, ())
            serve(session.sparkContext, archive, path)
    libraries = tuple(dict.fromkeys((str(Path(__file__).parents[2]), str(Path(msgpack.__file__).parents[1]))))
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    return replace(place, libraries=libraries, archive=archive)


def source_name(job: str) -> str:
    """Return how the name of the data source begins for the results of a job; Spark's plans have it."""
    return f"megaflow_{job}"


def source_class(named: str, place: ResultsPlace) -> Any:
    """Return the class of a data source for one job."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType

    more: tuple[type, ...] = ()
    with suppress(ImportError):  # not before Spark 4.2
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

        more = (SupportsTriggerAvailableNow,)

    class Reader(DataSourceStreamReader, *more):  # type: ignore[misc]
        """Plans in the driver, reads in tasks."""

        def __init__(self) -> None:
            self._poll = Poll(place)
            self._last: int | None = None  # the end of the batch before, if that is known

        def initialOffset(self) -> dict[str, Any]:
            return {"job": place.job, "rows": 0}

        def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
            after = self._last if start is None else self._place(start)
            self._last = self._poll.latest(after)
            return {"job": place.job, "rows": self._last}

        def prepareForTriggerAvailableNow(self) -> None:
            self._poll.until_ended = True

        def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
            return [InputPartition(part) for part in parts(self._place(start), self._place(end))]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return read_rows(place, *partition.value)

        def _place(self, offset: dict[str, Any]) -> int:
            if offset["job"] != place.job:
                raise ValueError(
                    f"This checkpoint has read the results of another job, {offset['job']}, not those of "
                    f"{place.job}. Give the query its own checkpointLocation; if both are to resume, also give "
                    "the job a store."
                )
            return int(offset["rows"])

    class Results(DataSource):
        """The results of one job."""

        @classmethod
        def name(cls) -> str:
            return named

        def schema(self) -> StructType:
            import json

            return StructType.fromJson(json.loads(place.schema))

        def streamReader(self, schema: StructType) -> Reader:
            return Reader()

    return Results


class Poll:
    """Asks the launcher what there is, for the reader that plans. Travels by value, before it is used."""

    def __init__(self, place: ResultsPlace) -> None:
        self.until_ended = False  # wait until there is more, or the end
        self._place = place
        self._door: Any = None
        self._number = 0

    def latest(self, after: int | None) -> int:
        """Return where the next batch ends; after a moment without more, where it begins."""
        find_megaflow(self._place)
        from megaflow.control.results_messages import Latest

        deadline = time.monotonic() + POLL_SECONDS
        self._door = self._door or connect(self._place)
        while True:
            self._number += 1
            self._door.send(Latest(self._number, after))
            answer = awaited(self._door, self._number)
            if answer is not None and (answer.place > (after or 0) or answer.ended):
                return int(answer.place)
            if not self.until_ended and time.monotonic() >= deadline:
                return after or 0

    def close(self) -> None:
        """End the connection."""
        if self._door is not None:
            self._door.close()


def find_megaflow(place: ResultsPlace) -> None:
    """See that megaflow can be imported in a process of Spark's: what was shipped, or what is on this machine."""
    from pyspark import SparkFiles

    if place.archive:
        folder = os.path.join(SparkFiles.getRootDirectory(), place.archive)
        library = os.path.join(folder, "lib")
        if os.path.isdir(library) and library not in sys.path:
            for name in [name for name in sys.modules if name.partition(".")[0] == "megaflow"]:
                del sys.modules[name]  # of another version, perhaps
            sys.path.insert(0, library)
            sys.path.append(os.path.join(folder, "deps"))
    sys.path += [folder for folder in place.libraries if folder not in sys.path and os.path.isdir(folder)]


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
    raise OSError(f"The job's launcher does not answer at {places}: it has ended, or cannot be reached from here.")


def checked(answer: Any) -> Any:
    """Return an answer. Raises what the launcher has against the question."""
    from megaflow.control.results_messages import ResultsRefused

    if type(answer) is ResultsRefused:
        raise ValueError(answer.reason)
    return answer


def awaited(door: Any, number: int) -> Any:
    """Return the answer to a question, None if there is none for a while."""
    deadline = time.monotonic() + POLL_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            answer = checked(door.receive(left))
        except TimeoutError:
            return None
        if answer.number == number:
            return answer
    return None


def parts(start: int, end: int) -> list[tuple[int, int]]:
    """Cut a batch into what its tasks read.

    >>> parts(10, 20), len(parts(0, 10**6)), parts(0, 100_001)[-1]
    ([(10, 20)], 8, (66668, 100001))
    """
    count = max(1, min(PARTS_MAX, -(-(end - start) // ROWS_A_PART)))
    size = -(-(end - start) // count)
    return [(at, min(at + size, end)) for at in range(start, end, size or 1)]


def read_rows(place: ResultsPlace, start: int, end: int) -> Iterator[Any]:
    """Yield rows as Arrow record batches. Runs in a task of Spark's."""
    find_megaflow(place)
    import json

    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    spark_schema = StructType.fromJson(json.loads(place.schema))
    try:
        schema = to_arrow_schema(spark_schema, timezone="UTC")
    except TypeError:  # before Spark 4.2
        schema = to_arrow_schema(spark_schema)
    found: list[list[Any]] = [[] for _ in schema]
    for columns in read_columns(place, start, end):
        start += len(columns[0])
        for values, more in zip(found, columns):
            values += more
        if start == end or len(found[0]) >= ROWS_A_BATCH:
            arrays = [pyarrow.array(values, kind.type) for values, kind in zip(found, schema)]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
            found = [[] for _ in schema]


def read_tuples(place: ResultsPlace, pieces: Iterable[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
    """Yield rows as tuples, of which Spark makes rows. Runs in a task of Spark's, without Arrow."""
    find_megaflow(place)
    import json

    from megaflow.control.row_values import as_rows

    converters = [as_rows(field["type"]) for field in json.loads(place.schema)["fields"]]
    for start, end in pieces:
        for columns in read_columns(place, start, end):
            yield from zip(*[map(make, values) if make else values for make, values in zip(converters, columns)])


def read_columns(place: ResultsPlace, start: int, end: int) -> Iterator[list[list[Any]]]:
    """Yield the columns of rows that came together, in turn."""
    from megaflow.control.result_rows import unpack
    from megaflow.control.results_messages import Take

    with connect(place) as door:
        while start < end:
            door.send(Take(start))
            pack = checked(door.receive(ANSWER_SECONDS))
            columns = [values[start - pack.start : end - pack.start] for values in unpack(pack.data)]
            yield columns
            start += len(columns[0])
