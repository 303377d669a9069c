"""The handle of a `StatefulProcessor`, whose states and timers are those of one key at a time.

The state of a key is one dict: variable name -> its value. A ValueState is a tuple, a ListState a list of tuples, a
MapState a dict of tuples. So `control.get(operator, key)` shows {"count": (3,), "pages": [("home",), ("cart",)]}.

1. A variable without a value has no entry. A key without entries is forgotten.
2. A variable with a TTL has pairs (expiry, tuple) instead of tuples, as in Spark: each element of a list and each entry
   of a map expires by itself. A value is past its time from its expiry on. Reading skips such values; `CLEANUP`
   removes them.
3. `TIMERS` has the expiry times of the live timers, in order. megaflow's timers cannot be canceled. So a timer that is
   not listed is ignored when it fires.
4. `CLEANUP` has the expiry of the one timer with which the adapter removes values past their time. When it fires, it
   is set again for the first remaining expiry. A renewed value costs nothing until then.
5. Entries of variables that the processor no longer declares stay, unless it names them in `deleteIfExists`.
"""

from bisect import insort
from collections.abc import Iterable, Iterator
from operator import index
from typing import Any, Final, TypeAlias, TypeVar

from megaflow.errors import UsageError
from megaflow.megaphone.base.event_unit import GREATEST, LEAST
from megaflow.spark.processor_values import StateSchema
from megaflow.spark.query_spec import TimeMode

TIMERS: Final = "$timers"
CLEANUP: Final = "$cleanup"

TIME_MODES: Final[dict[str, TimeMode]] = {
    "none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime",
}  # fmt: skip
LONG: Final = 1 << 63
MS: Final = 1000  # microseconds

TIMER: Final = "timer"  # first item of a payload: a timer of the processor is due
STALE: Final = "stale"  # values are past their time

Entries: TypeAlias = dict[str, Any]
V = TypeVar("V", bound="Variable")


class ProcessorHandle:
    """The handle for `StatefulProcessor.init`: it makes state variables, and sets timers of the present key."""

    def __init__(self, time_mode: str) -> None:
        """`time_mode`: one of Spark's, in any case. Raises UsageError."""
        self.time_mode = time_mode_of(time_mode)
        self.entries: Entries = {}  # of the present key
        self.now_ms = -1  # the batch's processing time or watermark
        self._variables: dict[str, Variable] = {}
        self._deleted: set[str] = set()
        self._timers: Any = None  # megaflow's handle during a call
        self._fires = False  # whether the present call is for expired timers
        self._is_open = True  # during `init`

    # What the fold calls ------------------------------------------------------------------

    def seal(self) -> dict[str, str]:
        """End `init`; return the declarations of the variables, by their names."""
        self._is_open = False
        return {name: variable.declaration() for name, variable in self._variables.items()}

    def begin(self, state: Entries | None, timers: Any, now_ms: int, fires: bool) -> None:
        """Begin a call for a key. `fires`: it is for expired timers."""
        self.entries = {} if state is None else state
        for name in self._deleted & self.entries.keys():
            del self.entries[name]
        self._timers, self.now_ms, self._fires = timers, now_ms, fires

    def end(self) -> Entries | None:
        """End the call; return the state to keep, None: nothing."""
        entries = self.entries
        if CLEANUP not in entries:
            expiries = [expiry for variable in self._variables.values() for expiry in variable.expiries()]
            if expiries:
                entries[CLEANUP] = first = min(expiries)
                self._set_event(first, (STALE, first))
        self._timers, self.entries = None, {}
        return entries if entries.keys() - {CLEANUP} else None

    def is_live(self, expiry_ms: int) -> bool:
        """Tell whether the present key has a timer."""
        return expiry_ms in self.entries.get(TIMERS, ())

    def clean(self, expiry_ms: int) -> None:
        """Remove values past their time if the timer is the one that is noted."""
        if self.entries.get(CLEANUP) == expiry_ms:
            del self.entries[CLEANUP]
            for variable in self._variables.values():
                variable.clean()

    def _set_event(self, expiry_ms: int, payload: tuple[str, int]) -> None:
        """Set a timer of megaflow. It has none for times after the year 9999, which no watermark reaches."""
        if expiry_ms <= GREATEST // MS:
            self._timers.at_event(max(expiry_ms, -(-LEAST // MS)), payload)

    # What the processor calls in `init` -----------------------------------------------------

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> "ValueState":
        """Return a new variable with one value."""
        return self._declare(ValueState(self, stateName, schema, ttlDurationMs))

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> "ListState":
        """Return a new variable with a list of values."""
        return self._declare(ListState(self, stateName, schema, ttlDurationMs))

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> "MapState":  # fmt: skip
        """Return a new variable with a map."""
        return self._declare(MapState(self, stateName, userKeySchema, valueSchema, ttlDurationMs))

    def deleteIfExists(self, stateName: str) -> None:
        """Remove a variable that an earlier version of the processor has left."""
        self._check_open(f"deleteIfExists({stateName!r})")
        if stateName in self._variables:
            raise UsageError(f"deleteIfExists: The processor itself declares the state {stateName!r}.")
        self._deleted.add(stateName)

    def _declare(self, variable: V) -> V:
        name = variable.name
        self._check_open(f"The state {name!r}")
        if not isinstance(name, str) or not name.strip() or name != name.strip() or name.startswith("$"):
            raise UsageError(f"A state cannot have the name {name!r}. It must not begin with $ or have outer blanks.")
        if name in self._variables:
            raise UsageError(f"The state {name!r} has already been defined in the processor. Use another name.")
        if variable.ttl_ms is not None:
            if variable.ttl_ms <= 0:
                raise UsageError(f"The state {name!r}: ttlDurationMs must be greater than 0, not {variable.ttl_ms}.")
            if self.time_mode != "processingtime":
                raise UsageError(f"The state {name!r} has a TTL, so timeMode must be 'ProcessingTime'.")
        self._variables[name] = variable
        return variable

    def _check_open(self, what: str) -> None:
        if not self._is_open:
            raise UsageError(f"{what}: Call this in the processor's init, and not later.")

    # Timers ---------------------------------------------------------------------------------

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Set a timer of the present key.

        If it is already due, it fires in this batch after all rows. If it is set while timers fire, it waits until the
        batch's time rises. In Spark it waits for the next batch, even if that has the same watermark.
        """
        expiry_ms = self._checked("registerTimer", expiryTimestampMs)
        live = self.entries.setdefault(TIMERS, [])
        if expiry_ms in live:
            return
        insort(live, expiry_ms)
        due_ms = max(expiry_ms, self.now_ms + 1) if self._fires else expiry_ms
        self._set_event(due_ms, (TIMER, expiry_ms))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Remove a timer of the present key, if there is one."""
        expiry_ms = self._checked("deleteTimer", expiryTimestampMs)
        live = self.entries.get(TIMERS, [])
        if expiry_ms in live:
            live.remove(expiry_ms)
            if not live:
                del self.entries[TIMERS]

    def listTimers(self) -> Iterator[int]:
        """Iterate over the timers of the present key, in order of their time."""
        self._checked("listTimers", 0)
        return iter([*self.entries.get(TIMERS, ())])

    def _checked(self, call: str, expiry_ms: Any) -> int:
        if self.time_mode == "none":
            raise UsageError(f"{call}: timeMode 'None' has no timers. Use 'ProcessingTime' or 'EventTime'.")
        if self._timers is None:
            raise UsageError(f"{call}: Call this while the processor handles rows or a timer of a key.")
        expiry = index(expiry_ms)
        if not -LONG <= expiry < LONG:
            raise ValueError(f"{call}: {expiry} ms is not a time.")
        return int(expiry)


def time_mode_of(time_mode: object) -> str:
    """Return a time mode in lower case. Raises UsageError.

    >>> time_mode_of("EventTime")
    'eventtime'
    """
    if isinstance(time_mode, str) and time_mode.lower() in TIME_MODES:
        return time_mode.lower()
    raise UsageError(f"timeMode must be one of {', '.join(TIME_MODES.values())}, not {time_mode!r:.80}.")


class Variable:
    """A state variable: its entry among those of the present key, and what expires in it."""

    def __init__(self, handle: ProcessorHandle, name: str, ttl_ms: int | None) -> None:
        self.name = name
        self.ttl_ms = ttl_ms
        self._handle = handle

    def declaration(self) -> str:
        """Return the declaration in words, for comparison. Entries of another declaration do not fit the variable."""
        return f"{self._kind()}{'' if self.ttl_ms is None else ' with a TTL'}"

    def clear(self) -> None:
        """Remove the value."""
        self._handle.entries.pop(self.name, None)

    def expiries(self) -> list[int]:
        """Return the expiry times in the entry."""
        entry = self._handle.entries.get(self.name)
        return [] if self.ttl_ms is None or entry is None else [each[0] for each in self._parts(entry)]

    def clean(self) -> None:
        """Remove what is past its time."""
        if self.ttl_ms is not None and self.name in self._handle.entries:
            if living := self._living():
                self._handle.entries[self.name] = living
            else:
                self.clear()

    def _kind(self) -> str:
        """Return the kind of the variable with the types of its columns."""
        raise NotImplementedError

    def _parts(self, entry: Any) -> Iterable[Any]:
        """Return the pairs (expiry, value) of an entry."""
        raise NotImplementedError

    def _living(self) -> Any:
        """Return the entry without what is past its time; it is empty or None if nothing remains."""
        raise NotImplementedError

    def _with_expiry(self, value: Any) -> Any:
        return value if self.ttl_ms is None else (self._handle.now_ms + self.ttl_ms, value)

    def _is_alive(self, kept: Any) -> bool:
        return self.ttl_ms is None or bool(kept[0] > self._handle.now_ms)

    def _value(self, kept: Any) -> Any:
        return kept if self.ttl_ms is None else kept[1]


class ValueState(Variable):
    """A variable with one value."""

    def __init__(self, handle: ProcessorHandle, name: str, schema: Any, ttl_ms: int | None) -> None:
        super().__init__(handle, name, ttl_ms)
        self._schema = StateSchema(schema, f"The state {name!r}")

    def exists(self) -> bool:
        """Tell whether there is a value."""
        return self._living() is not None

    def get(self) -> tuple[Any, ...] | None:
        """Return the value, None: there is none."""
        entry = self._living()
        return None if entry is None else tuple(self._schema.outward(self._value(entry)))

    def update(self, newValue: Any) -> None:
        """Replace the value."""
        self._handle.entries[self.name] = self._with_expiry(self._schema.inward(newValue))

    def _kind(self) -> str:
        return f"a ValueState of ({self._schema})"

    def _parts(self, entry: Any) -> Iterable[Any]:
        return [entry]

    def _living(self) -> Any:
        entry = self._handle.entries.get(self.name)
        return None if entry is None or not self._is_alive(entry) else entry


class ListState(Variable):
    """A variable with a list of values."""

    def __init__(self, handle: ProcessorHandle, name: str, schema: Any, ttl_ms: int | None) -> None:
        super().__init__(handle, name, ttl_ms)
        self._schema = StateSchema(schema, f"The state {name!r}")

    def exists(self) -> bool:
        """Tell whether there is a value."""
        return bool(self._living())

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the present values. Later changes do not matter."""
        return (tuple(self._schema.outward(self._value(each))) for each in self._living())

    def put(self, newState: Iterable[Any]) -> None:
        """Replace all values."""
        self._handle.entries[self.name] = self._checked("put", newState)

    def appendValue(self, newState: Any) -> None:
        """Add a value."""
        self._handle.entries.setdefault(self.name, []).append(self._with_expiry(self._schema.inward(newState)))

    def appendList(self, newState: Iterable[Any]) -> None:
        """Add values."""
        self._handle.entries.setdefault(self.name, []).extend(self._checked("appendList", newState))

    def _checked(self, call: str, values: Iterable[Any]) -> list[Any]:
        made = [self._with_expiry(self._schema.inward(value)) for value in values]
        if not made:
            raise ValueError(f"The state {self.name!r}: {call} needs at least one value. Use clear() for none.")
        return made

    def _kind(self) -> str:
        return f"a ListState of ({self._schema})"

    def _parts(self, entry: Any) -> Iterable[Any]:
        found: list[Any] = entry
        return found

    def _living(self) -> Any:
        return [each for each in self._handle.entries.get(self.name, ()) if self._is_alive(each)]


class MapState(Variable):
    """A variable with a map."""

    def __init__(self, handle: ProcessorHandle, name: str, key: Any, value: Any, ttl_ms: int | None) -> None:
        super().__init__(handle, name, ttl_ms)
        self._keys = StateSchema(key, f"The keys of the state {name!r}")
        self._schema = StateSchema(value, f"The state {name!r}")

    def exists(self) -> bool:
        """Tell whether there is an entry."""
        return bool(self._living())

    def getValue(self, key: Any) -> Any:
        """Return the value of a key as a Row, None: there is none."""
        found = self._handle.entries.get(self.name, {}).get(self._keys.as_key(key))
        return self._schema.outward(self._value(found)) if found is not None and self._is_alive(found) else None

    def containsKey(self, key: Any) -> bool:
        """Tell whether a key has a value."""
        found = self._handle.entries.get(self.name, {}).get(self._keys.as_key(key))
        return found is not None and self._is_alive(found)

    def updateValue(self, key: Any, value: Any) -> None:
        """Replace the value of a key."""
        kept = self._keys.as_key(key), self._with_expiry(self._schema.inward(value))
        self._handle.entries.setdefault(self.name, {})[kept[0]] = kept[1]

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Iterate over the present keys and values. Later changes do not matter."""
        return zip(self.keys(), self.values(), strict=True)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the present keys."""
        return (tuple(self._keys.outward(key)) for key in self._living())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the present values."""
        return (tuple(self._schema.outward(self._value(each))) for each in self._living().values())

    def removeKey(self, key: Any) -> None:
        """Remove a key, if it is there."""
        entry = self._handle.entries.get(self.name, {})
        entry.pop(self._keys.as_key(key), None)
        if not entry:
            self.clear()

    def _kind(self) -> str:
        return f"a MapState of ({self._keys}) to ({self._schema})"

    def _parts(self, entry: Any) -> Iterable[Any]:
        found: dict[Any, Any] = entry
        return found.values()

    def _living(self) -> Any:
        entry = self._handle.entries.get(self.name, {})
        return {key: each for key, each in entry.items() if self._is_alive(each)}
