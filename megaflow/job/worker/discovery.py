"""Asks the program's sources for their partitions, on the worker that coordinates the job.

Each is asked in a thread of its own, at the start and then as often as it says, so that one which takes long holds
neither the worker nor another source. `turn` runs on the worker's thread: it begins what is due and takes in what was
found. A coordinator that takes over begins anew with the sources that have not said that no more will come; what these
find again is known.

Of each partition its source is asked for a bound of event time, if the program takes timestamps of its records; that
must not block. Where several operators do, in several units, the least that it can mean counts.

What is found travels as bytes, and equal partitions must have equal bytes there (`control.coordinator.partitions`).
Sets, or floats and ints that are equal, need not be encoded alike; so the first encoding of a value stands for all,
as long as the coordinator knows it.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from threading import Thread
from types import MappingProxyType
from typing import Any, TypeAlias

from megaflow.connect.source_protocol import Found, Source
from megaflow.control.coordinator.events import Discovered
from megaflow.control.coordinator.job_state import TimedOperator
from megaflow.errors import CannotTravel, SourceError
from megaflow.megaphone.event_unit import EventUnit
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

Beside: TypeAlias = Callable[[Callable[[], Any]], Future[Any]]
"""Runs a function beside the worker; what comes of it is in the Future."""


def in_a_thread(task: Callable[[], Any], done: Callable[[], None]) -> Future[Any]:
    """Run a function in a thread that ends with the process; `done` is called by it afterwards."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(task())
        except BaseException as error:
            future.set_exception(error)
        done()

    Thread(target=run, name="megaflow-discovery", daemon=True).start()
    return future


@dataclass(slots=True)
class Inquired:
    """One source that may still find partitions."""

    source: Source[Any]
    due: float = 0.0  # seconds; when it is to be asked
    answer: Future[Any] | None = None  # None: it is not being asked


class Discovery:
    """The sources that a coordinator asks. All on the worker's thread."""

    def __init__(
        self, sources: Mapping[str, Source[Any]], known: Iterable[tuple[str, bytes]], beside: Beside,
        operators: Mapping[str, TimedOperator] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`known` are the partitions of these, and perhaps of others, that were found before.

        `operators`: those that take timestamps, by their names.
        """
        self._operators = operators
        self._asked = {name: Inquired(source) for name, source in sources.items()}
        self._known: dict[str, dict[Any, bytes]] = {name: {} for name in sources}
        for name, encoded in known:
            if name in self._known:
                self._known[name][decode(encoded)] = encoded
        self._beside = beside

    def turn(
        self, now: float, is_known: Callable[[str, bytes], bool] = lambda source, partition: True
    ) -> list[Discovered]:
        """Ask those that are due; return what was found since the last call. Raises what a source does, with a note.

        `is_known` tells what the coordinator has not forgotten of what it was told; that is all that was returned here.
        """
        found = []
        for name, asked in [*self._asked.items()]:
            if asked.answer is None and asked.due <= now:
                asked.answer = self._beside(asked.source.discover)
            if asked.answer is not None and asked.answer.done():
                found.append(self._found(name, asked, now, is_known))
        return found

    def due_in(self, now: float) -> float | None:
        """Return in how many seconds one is to be asked; None: none, or not before an answer comes."""
        return min((max(0.0, each.due - now) for each in self._asked.values() if each.answer is None), default=None)

    def _found(
        self, name: str, asked: Inquired, now: float, is_known: Callable[[str, bytes], bool]
    ) -> Discovered:  # fmt: skip
        assert asked.answer is not None, "it was asked"
        title = f"in source {name!r}, in discover()"
        try:
            if (fault := asked.answer.exception()) is not None:  # raised here, without the frames of the Future
                raise fault
            answer = asked.answer.result()
            found = answer if isinstance(answer, Found) else Found(answer)
            if found.complete:
                known = self._known[name].items()
                self._known[name] = {each: encoded for each, encoded in known if is_known(name, encoded)}
            new = {self._encoded(name, each): each for each in found.partitions}
        except (SourceError, CannotTravel) as error:
            raise type(error)(f"{title}: {error}") from None
        except Exception as error:
            error.add_note(title)
            raise
        asked.answer = None
        if found.again_seconds is None:
            del self._asked[name]
        else:
            asked.due = now + found.again_seconds
        bounds = tuple(self._bound(name, asked.source, each) for each in new.values())
        says = any(each is not None for each in bounds)
        return Discovered(name, tuple(new), found.again_seconds is None, bounds if says else (), found.complete)

    def _bound(self, name: str, source: Source[Any], partition: Any) -> int | None:
        """Return the microseconds of event time before which a partition has nothing; None if nobody knows, or cares.

        Raises SourceError for what is no time, and what the source does, with a note.
        """
        ask = getattr(source, "lower_bound", None)
        units = {each.unit for each in self._operators.values() if name in each.inputs}
        if ask is None or not units:
            return None
        title = f"in source {name!r}, in lower_bound({partition!r:.100})"
        try:
            bound = ask(partition)
        except Exception as error:
            error.add_note(title)
            raise
        try:
            return None if bound is None else min(micros_of(bound, unit) for unit in units)
        except ValueError as error:
            raise SourceError(f"{title}: {error}") from None

    def _encoded(self, name: str, partition: Any) -> bytes:
        known = self._known[name]
        try:
            encoded = known.get(partition)
        except TypeError:
            wrong = "cannot be hashed: give a str, an int, or a tuple of these"
            raise SourceError(f"The partition {partition!r:.100} {wrong}.") from None
        if encoded is None:
            encoded = known[partition] = encode(partition)
        return encoded


def micros_of(bound: Any, unit: EventUnit | None) -> int:
    """Return a time in microseconds: a datetime, or a number of a unit, or of seconds if that is not known yet.

    Raises ValueError for what is neither.

    >>> micros_of(2, None), micros_of(2, EventUnit.MILLISECONDS)
    (2000000, 2000)
    """
    if isinstance(bound, datetime):
        return EventUnit.DATETIME.micros(bound)
    return (EventUnit.SECONDS if unit is None else unit).micros(bound)
