"""Data sources that a session finds by their names, once `megaflow.spark.register` has registered them.

megaflow-state  a batch: the states of an operator at a checkpoint of a store

As in `results_source`, the classes travel by value, and first find megaflow in Spark's processes. Stores and job files
belong to a layer above this one. So its functions arrive here pickled, and are loaded when megaflow is found.
"""

import pickle
import sys
from collections.abc import Iterator
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from megaflow.spark.results_source import Code, find_megaflow, reachable_code

STATE: Final = "megaflow-state"
STATE_SCHEMA: Final = "key STRING, value STRING, partition_id INT"  # names of Spark's source `statestore`
STATE_OPTIONS: Final = ("path", "operator", "checkpoint", "modules")
BYTES_A_PART: Final = 16 << 20
PARTS_MAX: Final = 64  # each reads all changes since the bins were last written whole


def register_sources(session: SparkSession, states: bytes) -> None:
    """Let a session find these sources. `states` are two functions: see `state_class`."""
    code = reachable_code(session)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    session.dataSource.register(state_class(code, states))


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
