"""Discovery of partitions: the worker that coordinates the job asks the program's sources for them.

Each source is asked in a thread of its own, at the start and then as often as it requests. So a slow source delays
neither the worker nor another source. `turn` runs on the worker's thread: it asks the sources that are due and takes in
their answers. A coordinator that takes over asks again each source that may still find partitions. It already
knows those that were found before.

If the program takes timestamps of a source's records, the source is asked for a bound of event time of each partition.
This call must not block. If several operators take timestamps in different units, the least resulting time counts.

Partitions travel as bytes, and the coordinator compares these bytes (`control.coordinator.reading.partitions`). Equal
sets, or equal floats and ints, may have different encodings. So the first encoding of a value is used for all equal
values, as long as the coordinator knows it.

A source of followed files also has `first_sights(partitions)`. It returns, by partition, what distinguishes a new
partition from another one with the same name, so that each reader can compare what it finds. A thread calls it for
partitions that no worker reads. It is not called for the first answer of an attempt: all processes compare these
partitions when they come (`inputs_check`), and there may be many.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from threading import Thread
from types import MappingProxyType
from typing import Any, TypeAlias

from megaflow.connect.source_protocol import Found, Source
from megaflow.control.coordinator.base.events import Discovered
from megaflow.control.coordinator.base.job_state import TimedOperator
from megaflow.errors import CannotTravel, SourceError
from megaflow.megaphone.base.event_unit import EventUnit
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.error_notes import noting

Beside: TypeAlias = Callable[[Callable[[], Any]], Future[Any]]
"""Runs a function beside the worker; the Future has its result or its error."""


def in_a_thread(task: Callable[[], Any], done: Callable[[], None]) -> Future[Any]:
    """Run a function in a thread that ends with the process; the thread calls `done` afterwards."""
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
    """A source that may still find partitions."""

    source: Source[Any]
    due: float = 0.0  # seconds; the time of its next call
    answer: Future[Any] | None = None  # None: it is not being called
    is_first: bool = False  # its next answer is the first one of this attempt
    found: Found | None = None  # an answer with new partitions; `answer` then says what these are like


class Discovery:
    """The sources that a coordinator asks. All methods run on the worker's thread."""

    def __init__(
        self, sources: Mapping[str, Source[Any]], known: Iterable[tuple[str, bytes]], beside: Beside,
        operators: Mapping[str, TimedOperator] = MappingProxyType({}), is_first: bool = False,
    ) -> None:  # fmt: skip
        """`known`: the partitions that were found before, of these sources and perhaps of others.

        `operators`: the operators that take timestamps, by name. `is_first`: nothing was discovered in this attempt.
        """
        self._operators = operators
        self._asked = {name: Inquired(source, is_first=is_first) for name, source in sources.items()}
        self._known: dict[str, dict[Any, bytes]] = {name: {} for name in sources}
        for name, encoded in known:
            if name in self._known:
                self._known[name][decode(encoded)] = encoded
        for name, source in sources.items():
            if (recall := getattr(source, "recall", None)) is not None:
                with noting(lambda name=name: f"in source {name!r}, in recall()"):  # type: ignore[misc]
                    recall([*self._known[name]])
        self._beside = beside

    def turn(
        self, now: float, is_known: Callable[[str, bytes], bool] = lambda source, partition: True,
        is_unread: Callable[[str, bytes], bool] = lambda source, partition: False,
    ) -> list[Discovered]:  # fmt: skip
        """Ask the sources that are due; return what they found since the last call. Raises their errors, with a note.

        `is_known` tells whether the coordinator still knows a partition, and `is_unread` whether it is also not read to
        its end. The coordinator must have received all that earlier calls returned.
        """
        found = []
        for name, asked in [*self._asked.items()]:
            if asked.answer is None and asked.due <= now:
                asked.answer = self._beside(asked.source.discover)
            if asked.answer is not None and asked.answer.done() and not self._looks_on(name, asked, is_unread):
                found.append(self._found(name, asked, now, is_known))
        return found

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next source is due; None if there is none, or all are being asked."""
        return min((max(0.0, each.due - now) for each in self._asked.values() if each.answer is None), default=None)

    def _looks_on(self, name: str, asked: Inquired, is_unread: Callable[[str, bytes], bool]) -> bool:
        """Let a source of followed files look at the new ones of its answer, in a thread. Return whether it begins to.
        """
        assert asked.answer is not None, "it was asked"
        sights, is_first, asked.is_first = getattr(asked.source, "first_sights", None), asked.is_first, False
        if sights is None or is_first or asked.found is not None or asked.answer.exception() is not None:
            return False
        found: Found = asked.answer.result()
        if new := [each for each in found.partitions if not is_unread(name, self._encoded(name, each))]:
            asked.found, asked.answer = found, self._beside(partial(sights, new))
        return bool(new)

    def _found(
        self, name: str, asked: Inquired, now: float, is_known: Callable[[str, bytes], bool]
    ) -> Discovered:  # fmt: skip
        assert asked.answer is not None, "it was asked"
        title = f"in source {name!r}, in discover()"
        try:
            if (fault := asked.answer.exception()) is not None:  # raised here, without the frames of the Future
                raise fault
            answer = asked.answer.result() if asked.found is None else asked.found
            sights = {} if asked.found is None else asked.answer.result()
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
        asked.answer = asked.found = None
        if found.again_seconds is None:
            del self._asked[name]
        else:
            asked.due = now + found.again_seconds
        bounds = tuple(self._bound(name, asked.source, each) for each in new.values())
        says = any(each is not None for each in bounds)
        seen = tuple((encoded, encode(sights[each])) for encoded, each in new.items() if each in sights)
        return Discovered(name, tuple(new), found.again_seconds is None, bounds if says else (), found.complete, seen)

    def _bound(self, name: str, source: Source[Any], partition: Any) -> int | None:
        """Return the microseconds of event time before which a partition has no record; None if unknown or unused.

        Raises SourceError if the bound is not a time, and the source's error, with a note.
        """
        ask = getattr(source, "lower_bound", None)
        units = {each.unit for each in self._operators.values() if name in each.inputs}
        if ask is None or not units:
            return None
        title = f"in source {name!r}, in lower_bound({partition!r:.100})"
        with noting(lambda: title):
            bound = ask(partition)
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
    """Return a time in microseconds: a datetime, or a number in `unit`, or in seconds if the unit is not known yet.

    Raises ValueError for any other value.

    >>> micros_of(2, None), micros_of(2, EventUnit.MILLISECONDS)
    (2000000, 2000)
    """
    if isinstance(bound, datetime):
        return EventUnit.DATETIME.micros(bound)
    return (EventUnit.SECONDS if unit is None else unit).micros(bound)
