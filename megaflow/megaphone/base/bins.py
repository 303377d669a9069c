"""Keys, the bins that they fall into, and the store of the bins that one worker owns.

The high bits of a stable 64-bit hash of a key select its bin. Bins are the units that move between workers.

Rules for `stable_hash`, on which all processes must agree:
1. Equal keys have equal hashes. Keys are equal if a dict treats them so: 1 == 1.0 == True == Decimal(1) is one key.
2. The hash of a key is the same in every process, whatever PYTHONHASHSEED is. Python's own hash is used only for
   numbers, for which the value defines it, and all numeric types agree.
3. `stable_hash` refuses a key whose equality it cannot inspect, such as a class with its own `__eq__`; it does not
   guess. The texts, numbers and times of numpy and pandas equal those of Python (see `time_hashes`).
4. `stable_hash` refuses NaN anywhere in a key, because NaN equals nothing (`folds` describes what would follow).
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import fields, is_dataclass, make_dataclass
from enum import Enum, Flag
from functools import lru_cache
from numbers import Number
from typing import Any, Final, Protocol
from uuid import UUID
from zlib import crc32

from megaflow.durable.key_kinds import KeyKinds
from megaflow.errors import BuildError, ProgramError, UsageError
from megaflow.megaphone.base.event_timers import EventTimers
from megaflow.megaphone.base.time_hashes import LIBRARY_TIMES, MASK, ODD, TIMES, mix
from megaflow.megaphone.base.timers import Timer, TimerStore
from megaflow.quick_dataclass import compares_fields, dataclass
from megaflow.timely.dataflow.folds import NAN_IN_KEY, check_key

LOG2_BINS_MAX: Final = 20  # a routing table of a million bins; more would cost every reconfiguration too much


def stable_hash(key: object) -> int:
    """Return a 64-bit hash of the key that agrees with dict equality and is the same in every process.

    Costs about 0.1 microseconds for a short str. Raises UsageError for a key of an unknown type, and for a key that is
    or contains NaN.

    >>> stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    True
    >>> stable_hash(("a", 1)) == stable_hash(("a", 2))
    False
    """
    kind = type(key)
    if kind is str:
        try:
            code = crc32(key.encode())  # type: ignore[attr-defined]
        except UnicodeEncodeError:  # a lone surrogate
            code = crc32(key.encode("utf-8", "surrogatepass"))  # type: ignore[attr-defined]
        return code * ODD & MASK  # enough, because crc32 has spread the bits: mix would double the cost
    if kind is int:  # mix, written out: a call would cost a quarter more
        code = hash(key) * ODD & MASK
        code = (code ^ (code >> 32)) * ODD & MASK
        return code ^ (code >> 32)
    return (_HASHES.get(kind) or _hash_for(key))(key)


def _hash_number(key: Any) -> int:
    try:
        is_nan = key != key
    except ArithmeticError:  # decimal's signalling NaN may not even be compared
        is_nan = True
    if is_nan:
        raise UsageError(f"stable_hash({key!r}): {NAN_IN_KEY}")
    return mix(hash(key))


def _hash_str(key: str) -> int:
    return stable_hash(str.__str__(key))  # the plain str of a subclass


def _hash_tuple(key: tuple[object, ...]) -> int:
    result = len(key)
    for item in key:
        result = mix(result + stable_hash(item))
    return result


def _hash_enum(key: Enum) -> int:
    kind = type(key)
    return _hash_tuple((kind.__qualname__, key.value if isinstance(key, Flag) else key.name))


def _hash_dataclass(key: Any) -> int:
    compared = (getattr(key, field.name) for field in fields(key) if field.compare)
    return _hash_tuple((type(key).__qualname__, *compared))


_HASHES: Final[dict[type, Callable[[Any], int]]] = {
    bool: _hash_number,
    float: _hash_number,
    type(None): lambda key: mix(0x4E6F6E65),
    bytes: lambda key: mix(crc32(key)),
    tuple: _hash_tuple,
    frozenset: lambda key: mix(len(key) + sum(map(stable_hash, key))),
    UUID: lambda key: mix(key.int ^ (key.int >> 64)),
    **TIMES,
}  # type -> hash function; _hash_for adds the types of libraries that it has met

_OF_LIBRARIES: Final[dict[tuple[str, str], Callable[[Any], int]]] = {
    ("numpy", "bool"): _hash_number,
    ("numpy", "bool_"): _hash_number,  # of numpy 1
    ("numpy", "str_"): _hash_str,
    ("numpy", "bytes_"): lambda key: mix(crc32(bytes(key))),
    **LIBRARY_TIMES,
}  # library and name of a type -> hash function

_BASES: Final[dict[type, Callable[[Any], int]]] = {
    str: _hash_str,
    **{base: _HASHES[base] for base in (bytes, tuple, frozenset, UUID, *TIMES)},
}  # type -> hash function of its subclasses that keep its equality: NamedTuples, enums of str; datetime before date


def _hash_for(key: object) -> Callable[[Any], int]:
    """Find the hash function for a key of another type, from what its equality is known to compare."""
    kind = type(key)
    if isinstance(key, Number) and kind.__name__ != "timedelta64":  # a numpy integer that equals a timedelta
        return _hash_number
    equality: object = kind.__eq__
    for base, function in _BASES.items():
        if isinstance(key, base) and equality is base.__eq__:
            return function
    if isinstance(key, Enum) and equality is object.__eq__:
        return _hash_enum
    if is_dataclass(kind) and kind.__hash__ is not None and _has_generated_eq(kind):
        return _hash_dataclass
    if (found := _OF_LIBRARIES.get((kind.__module__.partition(".")[0], kind.__name__))) is not None:
        _HASHES[kind] = found
        return found
    raise UsageError(
        f"stable_hash({key!r}): a key of type {kind.__module__}.{kind.__qualname__} has no stable hash; use a str, "
        "bytes, number, date, UUID, enum, frozen dataclass or a tuple or frozenset of those as the key, or pass hash=, "
        "a function from the key to an int that is the same in every process"
    )


@lru_cache(maxsize=1024)  # called for each key
def _has_generated_eq(kind: type) -> bool:
    """Tell whether `@dataclass` made the equality of this class, which means that it compares the fields.

    A class that travelled to this process may have lost the file name that marks generated code. So this function
    compares the code itself with the code that `@dataclass` generates for the same fields.
    """
    owner = next(base for base in kind.__mro__ if "__eq__" in vars(base))
    equality = vars(owner)["__eq__"]
    if not is_dataclass(owner) or fields(owner) != fields(kind):
        return False
    if compares_fields(equality):
        return True
    code = getattr(equality, "__code__", None)
    generated: Any = make_dataclass("Same", [field.name for field in fields(owner) if field.compare]).__eq__
    wanted = generated.__code__
    return code is not None and (code.co_code, code.co_names) == (wanted.co_code, wanted.co_names)


def check_bins(bins: int) -> int:
    """Return the base-2 logarithm of the number of bins; raise BuildError unless it is a power of two from 1 to 2^20.

    >>> check_bins(256)
    8
    """
    if type(bins) is not int or bins < 1 or bins.bit_count() != 1 or bins > 1 << LOG2_BINS_MAX:
        raise BuildError(f"bins={bins!r}: the number of bins must be a power of two from 1 to {1 << LOG2_BINS_MAX}")
    return bins.bit_length() - 1


class BinWatcher(Protocol):
    """Observer of bins that change their owner; it hears of each change just before it happens."""

    def leaving(self, bin: int) -> None:
        """Take note that a bin is about to be taken out."""

    def arriving(self, bin: int, keys: Collection[Any]) -> None:
        """Take note that these keys of a bin are about to be added."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The contents of a bin that was taken out."""

    pairs: Iterable[tuple[Any, Any]]  # (key, state), in the order in which the keys came; drawn only once
    timers: list[Timer]  # by time
    events: Iterable[Timer] = ()  # event timers, in order


class BinStore:
    """States of one operator on one worker by key, with the keys and timers of each bin.

    `bins` is the number of all bins; at first the store owns none.

    All states are in one dict, where the fold finds and replaces them as it would without bins. The store computes hash
    and bin only when a key comes or goes. The fold replaces states; only the store adds and removes keys.

    Invariant: `states` has the keys of the owned bins. The owned bins are those in `bins`, and each key is in its own
    bin. `states` also has the keys of bins that were taken but are not drawn yet.
    """

    def __init__(self, bins: int, hash: Callable[[Any], int] = stable_hash) -> None:
        self._hash = hash
        self._shift = 64 - check_bins(bins)
        self.count = bins  # of all bins, here and elsewhere
        self.states: dict[Any, Any] = {}  # key -> state, never None
        self.bins: dict[int, dict[Any, None]] = {}  # owned bin -> its keys, in the order in which they came
        self.timers = TimerStore()  # of keys in owned bins, with a state or without
        self.events = EventTimers()  # likewise
        self.in_order: Callable[[Iterable[Any]], Iterable[Any]] = iter
        """Orders the keys of a set as a cut writes them: in any order, but in a simulation always the same."""
        self.watcher: BinWatcher | None = None  # set once the first bins are in
        self.key_kinds: KeyKinds | None = None  # F passes it the first records; set once the first bins are in
        self.arrived: Callable[[dict[Any, Any]], None] | None = None  # gets the states that a bin brings; set by S

    def bin_of_key(self, key: Any) -> int:
        """Return the bin that the key falls into; raise UsageError for NaN, or if the user's hash returns no int."""
        if self._hash is stable_hash:
            return stable_hash(key) >> self._shift
        check_key(key)
        return self.bin_of_record(key)

    def bin_of_record(self, record: Any) -> int:
        """Return the bin of a value that need not be a key but has a hash; raise UsageError as `bin_of_key` does."""
        value = self._hash(record)
        if not isinstance(value, int):
            raise UsageError(f"hash({record!r}) gave {value!r} of type {type(value).__name__}; it must give an int")
        return (value if self._hash is stable_hash else mix(value)) >> self._shift

    def create(self, key: Any, state: Any) -> None:
        """Add a new key, in an owned bin. Raises ProgramError if the user's hash differs from that of the sender."""
        bin = self.bin_of_key(key)
        try:
            self.bins[bin][key] = None
        except KeyError:
            assert self._hash is not stable_hash, f"key {key!r} belongs to bin {bin}, which this worker does not own"
            raise ProgramError(
                f"hash= gave another number for the key {key!r:.80} in another process. It must give the same one in "
                "all processes. The built-in hash of a str or of bytes does not; leave hash= out, or use stable_hash"
            ) from None
        self.states[key] = state

    def forget(self, key: Any) -> None:
        """Remove an existing key."""
        del self.states[key]
        del self.bins[self.bin_of_key(key)][key]

    def take(self, bin: int) -> Taken:
        """Give up an owned bin; return its contents. Cost: linear in its keys and timers, mostly while pairs are drawn.

        Drawing a pair releases its state, so a bin never takes its memory twice.
        """
        if self.watcher is not None:
            self.watcher.leaving(bin)
        keys = self.bins.pop(bin)
        return Taken(zip(keys, map(self.states.pop, keys), strict=True), self.timers.take(bin), self.events.take(bin))

    def adopt(self, states: dict[Any, Any], bins: dict[int, dict[Any, None]]) -> None:
        """Begin with these states and bins; the store takes both over. Cost: O(1)."""
        assert not self.bins, "there are bins already"
        self.states, self.bins = states, bins

    def install(
        self,
        bin: int,
        pairs: dict[Any, Any] | Iterable[tuple[Any, Any]],
        timers: Iterable[Timer] = (),
        events: Iterable[Timer] = (),
    ) -> None:
        """Own a bin, or extend it: add one chunk of its keys and states. The first chunk may be empty."""
        arrived = pairs if isinstance(pairs, dict) else dict(pairs)
        if self.watcher is not None:
            self.watcher.arriving(bin, arrived)
        self.bins.setdefault(bin, {}).update(dict.fromkeys(arrived))
        expected = len(self.states) + len(arrived)
        self.states.update(arrived)
        assert len(self.states) == expected, f"a key of bin {bin} arrived twice"
        if self.arrived is not None:
            self.arrived(arrived)
        self.timers.install(bin, timers)
        self.events.install(bin, events)

    def _check(self) -> None:
        for bin, keys in self.bins.items():
            for key in keys:
                assert self.bin_of_key(key) == bin, f"key {key!r} is in bin {bin}"
                assert self.states[key] is not None, f"key {key!r} has no state"
        for key in self.states:
            assert key in self.bins.get(self.bin_of_key(key), {key}), f"key {key!r} is missing in its bin"
        self.timers._check()
        self.events._check()
