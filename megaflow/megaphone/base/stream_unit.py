"""The unit of one stream's timestamps, on one worker: the program declares it, or the first timestamp decides it.

 1. A declared unit is known on all workers when the dataflow is built, and does not travel.
 2. If the program declares none, numbers are seconds. The worker that reads the first timestamp learns whether the unit
    is seconds or datetimes. The owner of a key may need the unit before it reads any timestamp, because it gives
    windows their bounds and may close them first. So the unit travels with records and with the states of windows.
 3. Only this module knows how the unit is *spelled*. A record in datetimes travels as a list [stamp, record], a record
    in seconds as a tuple. A state in datetimes ends in True. Stores contain states in this spelling. Measured, a record
    costs 150 ns with a tuple or a list, and 290 to 530 ns with an object of a class of our own.
 4. A worker that has seen datetimes and then a record in seconds ends the job, because workers have read both kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from itertools import chain
from typing import Any, Final, TypeVar

from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.base.event_unit import EventUnit
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.operators.stamped import Stamped

K = TypeVar("K")
T = TypeVar("T")

_SPELLINGS: Final = {list: EventUnit.DATETIME, tuple: EventUnit.SECONDS}
"""Type of a record and its stamp -> their unit, if the program declares none."""
_IN_DATETIMES: Final = True
"""The last item of a state in datetimes."""


class StreamUnit:
    """The unit of a stream's timestamps, on one worker. One writer: the worker's thread."""

    def __init__(self, known: EventUnit | None = None, title: str = "") -> None:
        self.known = known  # None: no timestamp has come yet; set once
        self.is_declared = known is not None  # by the program
        self.title = title  # the name and line of the `event_time` to which it belongs
        self._alike = [self]  # equal units, of streams that were put together

    def agree(self, others: Iterable[StreamUnit]) -> None:
        """Tie these units to this one: as soon as one of them is known, all are. Call it while the dataflow is built.

        Raises BuildError if they differ. Where the program declares no unit, numbers are seconds.
        """
        alike = list(dict.fromkeys(chain(self._alike, *(each._alike for each in others))))
        words = sorted({each._word for each in alike})
        known = {each.known for each in alike} - {None}
        if len(known) > 1 or (len(words) > 1 and known & {EventUnit.MILLISECONDS, EventUnit.MICROSECONDS}):
            which = ", ".join(f"{each.title} in {each._word}" for each in alike)
            several = " and ".join(words)
            raise BuildError(
                f"concat ({user_line()}): the timestamps of these streams have different units, {several}: {which}; "
                "give them one unit"
            )
        for each in alike:
            each._alike = alike
            each.known = next(iter(known), None)
            each.is_declared = bool(known)

    @property
    def _word(self) -> str:
        return "seconds or datetimes" if self.known is None else self.known.plural

    @property
    def titles(self) -> str:
        """The names and lines of all `event_time` operators with this unit."""
        return " and ".join(dict.fromkeys(each.title for each in self._alike))

    def micros(self, value: Any) -> int:
        """Return a time in microseconds; the first time decides an unknown unit. Raises ValueError with the reason."""
        if self.known is not None:
            return self.known.micros(value)
        unit = EventUnit.DATETIME if isinstance(value, datetime) else EventUnit.SECONDS
        micros = unit.micros(value)
        self._learn(unit)
        return micros

    def value(self, micros: int) -> Any:
        """Return a time in the program's form, in seconds as long as the unit is not known."""
        return (self.known or EventUnit.SECONDS).value(micros)

    def _learn(self, unit: EventUnit) -> None:
        """Set the unit, as a timestamp or another worker shows it. Raises ProgramError if another unit is known."""
        if self.known not in (None, unit):
            raise ProgramError(
                f"{self.titles}: timestamps are {unit.plural} on one worker, but {self._word} on another; a stream "
                'needs one kind of timestamps: choose it with unit="datetime" or unit="s"'
            )
        for each in self._alike:
            each.known = unit

    # The unit as it travels: rule 3 ---------------------------------------------------------

    @property
    def _is_spelled(self) -> bool:
        return not self.is_declared and self.known is EventUnit.DATETIME

    def spell(self, pairs: list[Stamped[T]]) -> list[Any]:
        """Return stamped records as they travel to other workers."""
        return [[stamp, record] for stamp, record in pairs] if self._is_spelled else pairs

    def unspell(self, spelled: list[Any]) -> list[Stamped[Any]]:
        """Return stamped records that have travelled, and learn the unit. Raises ProgramError."""
        self.read({*map(type, spelled)})
        return [(stamp, record) for stamp, record in spelled] if self._is_spelled else spelled

    def spell_values(self, pairs: list[Stamped[tuple[K, T]]]) -> list[tuple[K, Any]]:
        """Return the records of a batch of stamped pairs as they travel: each value with the stamp beside it."""
        if self._is_spelled:
            return [(key, [stamp, value]) for stamp, (key, value) in pairs]
        return [(key, (stamp, value)) for stamp, (key, value) in pairs]

    def spell_state(self, state: list[Any]) -> None:
        """Mark the state of a key's windows, which may move to a worker that does not know the unit."""
        if self._is_spelled and state[-1] is not _IN_DATETIMES:
            state.append(_IN_DATETIMES)

    def read(self, kinds: Collection[type], state: list[Any] | None = None) -> None:
        """Learn the unit from the types of records that have travelled, and from the state of a key's windows.

        Raises ProgramError if another unit is known.
        """
        if self.is_declared:
            return
        if state is not None and state[-1] is _IN_DATETIMES:
            self._learn(EventUnit.DATETIME)
        for kind, unit in _SPELLINGS.items():
            if kind in kinds and unit is not self.known:
                self._learn(unit)


IN_SECONDS: Final = StreamUnit(EventUnit.SECONDS)
