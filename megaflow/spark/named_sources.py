"""Data sources that a session finds by their names, once `megaflow.spark.register` has registered them.

megaflow-state  a batch: the states of an operator at a checkpoint of a store
megaflow        a stream: the results of a running job

As in `results_source`, the classes travel by value, and first find megaflow in Spark's processes. Stores and job files
belong to a layer above this one. So its functions arrive here pickled, and are loaded when megaflow is found.
"""

import pickle
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from megaflow.spark.results_source import Code, ResultsPlace, find_megaflow, reachable_code, reader_class, spark_schema

STATE: Final = "megaflow-state"
STATE_SCHEMA: Final = "key STRING, value STRING, partition_id INT"  # names of Spark's source `statestore`
STATE_OPTIONS: Final = ("path", "operator", "checkpoint", "modules")
BYTES_A_PART: Final = 16 << 20
RESULTS: Final = "megaflow"
RESULTS_OPTIONS: Final = ("job", "consumer")
ONLY_CONSUMER: Final = "default"  # for programs that need no name
PARTS_MAX: Final = 64  # each reads all changes since the bins were last written whole


def register_sources(session: SparkSession, states: bytes, find: bytes) -> None:
    """Let a session find these sources. `states` and `find` are functions: see `state_class` and `results_class`."""
    code, context = reachable_code(session), session.sparkContext
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    session.dataSource.register(state_class(code, states))
    holder = f"{context.appName!r} on {socket.gethostname()!r}, Spark's {context.applicationId}"
    reading = ResultsPlace("", (), "", b"", code, holder=holder)
    driver = str(context.getConf().get("spark.driver.host", "127.0.0.1"))
    session.dataSource.register(results_class(reading, find, str(context.master).startswith("local"), driver))


def state_class(code: Code, functions: bytes) -> Any:
    """Return the class of `megaflow-state`. `functions` are `choose_states` and `read_as_json` of `job.kept_states`.

    The checkpoint is chosen when a frame is loaded, so all its actions read the same states.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class StateReader(DataSourceReader):
        """Plans in the driver, reads in tasks."""

        def __init__(self, chosen: bytes, bins: int, size: int) -> None:
            self._chosen = chosen
            self._parts = bin_ranges(bins, size)

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(bins) for bins in self._parts]

        def read(self, partition: InputPartition) -> Iterator[tuple[str, str, int]]:
            ready(code)
            _, read_as_json = pickle.loads(functions)
            yield from read_as_json(pickle.loads(self._chosen), partition.value)

    class States(DataSource):
        """The states of one operator."""

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            ready(code)
            checked_options(STATE, options, STATE_OPTIONS)
            choose_states, _ = pickle.loads(functions)
            modules = filter(None, map(str.strip, options.get("modules", "").split(",")))
            chosen = choose_states(options.get("path", ""), options.get("operator"), options.get("checkpoint"), modules)
            self._reader = StateReader(pickle.dumps(chosen), chosen.bins, chosen.bytes)

        @classmethod
        def name(cls) -> str:
            return STATE

        def schema(self) -> str:
            return STATE_SCHEMA

        def reader(self, schema: Any) -> StateReader:
            return self._reader

    return States


def results_class(reading: ResultsPlace, find: bytes, is_local: bool, driver: str) -> Any:
    """Return the class of `megaflow`. `find` is `find_results` of `job.spark_sources`, `reading` lacks its answer.

    The secret is in the job's file, which only this user can read. The planning process in the driver reads it there,
    and passes it on to tasks in the closure. Each query asks for the place again when it begins, because the launcher
    may be another one by then.
    """
    from pyspark.sql.datasource import DataSource

    reader = reader_class()

    class NamedResults(DataSource):
        """The results of one job."""

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            find_megaflow(reading.code)
            checked_options(RESULTS, options, RESULTS_OPTIONS)
            self._job = options["job"]
            self._consumer = options.get("consumer") or ONLY_CONSUMER

        @classmethod
        def name(cls) -> str:
            return RESULTS

        def schema(self) -> Any:
            return spark_schema(self._place())

        def streamReader(self, schema: Any) -> Any:
            return reader(self._place())

        def _place(self) -> ResultsPlace:
            find_megaflow(reading.code)
            job, schema, addresses, secret = pickle.loads(find)(self._job, is_local, driver)
            return replace(
                reading, job=job, schema=schema, addresses=addresses, secret=secret, consumer=self._consumer
            )

    return NamedResults


def ready(code: Code) -> None:
    """Make megaflow importable in a process of Spark, and Rows readable in states."""
    find_megaflow(code)
    from megaflow.spark.stateful_rows import register_rows

    register_rows()


def checked_options(source: str, options: dict[str, str], known: tuple[str, ...]) -> None:
    """Raise UsageError for an option that a source does not have, and for a missing first one of `known`."""
    from megaflow.errors import UsageError

    if unknown := sorted(set(options) - {*known}):
        raise UsageError(f"{source}: There is no option {unknown[0]!r}. The options are {', '.join(known)}.")
    if not options.get(known[0]):
        how = "Name the store, as in load('kept')." if known[0] == "path" else f"Name the {known[0]} by an option."
        raise UsageError(f"{source}: The option {known[0]!r} is missing. {how}")


def bin_ranges(bins: int, size: int) -> list[range]:
    """Divide the bins of an operator among the tasks that read them. `size` is in bytes.

    >>> bin_ranges(256, 1000), [len(each) for each in bin_ranges(5, 40 << 20)]
    ([range(0, 256)], [1, 2, 2])
    """
    count = max(1, min(bins, PARTS_MAX, -(-size // BYTES_A_PART)))
    return [range(bins * part // count, bins * (part + 1) // count) for part in range(count)]
