"""Aggregates by key: counts, sums and folds of all records so far, one output per key and time at which it changed.

Before F each worker combines what it has of a time (`partial_results`). S merges the partial results of a time into the
states when the time is closed, and gives (key, state) for each key of it. So S is one of the timed kind, without
timers: what that says of capabilities, moves, cuts and nested scopes holds here. Only what is done with the batches of
a closed time is another.

The order of outputs, and that in which partial results are merged, is that of the senders' ids, and of each sender's
the order in which its keys came. So the same records at the same times on the same workers give the same outputs, sums
of floats included, whichever message arrives first.

`Counting` says how records are counted: how a worker combines batches, and how two results become one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain
from numbers import Number
from operator import add as plus
from typing import Any, Final, Generic, Protocol, Required, TypedDict, TypeVar

from megaflow.durable.restored import ANY_FORM, Form, NamedForm, Terms
from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.bins import stable_hash
from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.partial_results import ByPartial, Combined, Partials, combine
from megaflow.megaphone.splitting import Pairs
from megaflow.megaphone.stateful_core import Core, build, terms_of
from megaflow.megaphone.stateful_timed import NestedFolds, TimedFolds
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.error_notes import raised_by_loop
from megaflow.timely.dataflow.folds import complain_about, require_pairs
from megaflow.timely.dataflow.given import function, instance
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.record_copies import copies_of

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")
N = TypeVar("N", bound=complex | Decimal | Fraction)

_NUMBERS: Final = frozenset({int, float, bool, Decimal})  # and what else says that it is a Number
_NOTHING: Final = object()


class Steering(Protocol):
    """A stream of commands, seen from below."""

    port: Port[Any]


class Kept(TypedDict, Generic[K], total=False):
    """The name of an operator with a state, and how it reads stored states: see `stateful_state_machine`."""

    bins: int
    name: str | None
    version: int
    upgrade: Callable[[K, Any, int], Any] | None
    rehash: Callable[[K], int] | bool


class Placing(Kept[K], Generic[K], total=False):
    """Where the keys of an aggregate are, as well."""

    hash: Callable[[K], int]
    control: Steering | None


class Keyed(Placing[K], Generic[K, T, V], total=False):
    """The key and value of records that are not pairs, as well; without `value` the value is the record."""

    key: Required[Callable[[T], K]]
    value: Callable[[T], V]


@dataclass(frozen=True, slots=True)
class Counting:
    """How one kind of aggregate counts."""

    verb: str  # the method
    begin: Callable[[str], Combined]  # the operator's name -> what there is of a time without records
    merge: Callable[[Any, Any], Any]  # two results of one key -> one; neither is changed
    form: Form = ANY_FORM


class ValueCounts:
    """How often each record comes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts: Counter[Any] = Counter()

    def add(self, batch: list[Any]) -> None:
        """Count a batch. Cost: what `Counter.update` takes."""
        try:
            self._counts.update(batch)
        except TypeError as error:
            for record in batch:
                self._check(record, error)
            raise

    def _check(self, record: Any, error: TypeError) -> None:
        try:
            hash(record)
        except TypeError as unhashable:
            raise ProgramError(
                f"{self._name}: the record {record!r:.200} is a {type(record).__name__}, which cannot be a key "
                f"({unhashable}); map the stream to a tuple, a frozenset or a str first"
            ) from error

    def columns(self) -> tuple[list[Any], list[int]]:
        """Return what was counted, and how often each came."""
        return list(self._counts), list(self._counts.values())


class KeyCounts(ValueCounts):
    """How often each key comes."""

    def add(self, batch: list[Any]) -> None:
        """Count a batch of pairs."""
        require_pairs(self._name, batch)
        try:
            self._counts.update([key for key, _ in batch])
        except (TypeError, ValueError) as error:
            complain_about(batch, self._name, error)
            raise


class Sums:
    """The sum of each key's values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sums: dict[Any, Any] = {}

    def add(self, batch: list[Any]) -> None:
        """Add up a batch of pairs."""
        sums = self._sums
        find, kinds = sums.get, _NUMBERS
        require_pairs(self._name, batch)
        try:
            for key, value in batch:
                if type(value) not in kinds and not isinstance(value, Number):
                    raise ProgramError(
                        f"{self._name}: the value {value!r:.200} of key {key!r:.200} is a {type(value).__name__}, "
                        "but only numbers have a sum; map or filter the stream first, or use aggregate_by_key"
                    )
                sums[key] = find(key, 0) + value
        except (TypeError, ValueError) as error:
            complain_about(batch, self._name, error)
            if raised_by_loop(error):
                raise ProgramError(_unlike(self._name, key, find(key), value)) from error
            raise

    def columns(self) -> tuple[list[Any], list[Any]]:
        """Return the keys and their sums."""
        return list(self._sums), list(self._sums.values())


def _unlike(name: str, key: Any, total: Any, value: Any) -> str:
    return (
        f"{name}: {value!r:.200}, a {type(value).__name__}, cannot be added to the sum of key {key!r:.200}, which is "
        f"{total!r:.200}, a {type(total).__name__}; map the stream to numbers of one type first"
    )


class Folds:
    """What a function of the user's makes of each key's values."""

    def __init__(self, name: str, begin: Callable[[], Any], add: Callable[[Any, Any], Any]) -> None:
        self._name = name
        self._begin = begin
        self._add = add
        self._results: dict[Any, Any] = {}

    def add(self, batch: list[Any]) -> None:
        """Fold a batch of pairs."""
        results, begin, add, nothing = self._results, self._begin, self._add, _NOTHING
        find = results.get
        require_pairs(self._name, batch)
        try:
            for key, value in batch:
                before = find(key, nothing)
                result = add(begin() if before is nothing else before, value)
                if result is None:
                    raise ProgramError(_is_none(self._name, f"add(accumulated, {value!r:.200})", key))
                results[key] = result
        except (TypeError, ValueError) as error:
            complain_about(batch, self._name, error)
            if raised_by_loop(error):
                raise ProgramError(
                    f"{self._name}: add is called as add(accumulated, value) and must return the new accumulated "
                    f"value; instead: {error}"
                ) from error
            raise

    def columns(self) -> tuple[list[Any], list[Any]]:
        """Return the keys and what was made of each."""
        return list(self._results), list(self._results.values())


def _is_none(name: str, call: str, key: Any) -> str:
    return (
        f"{name}: {call} returned None for key {key!r:.200}; it must return the accumulated value, because None "
        "means that the key has none"
    )


COUNT_BY_VALUE: Final = Counting("count_by_value", ValueCounts, plus, NamedForm("counts"))
COUNT_BY_KEY: Final = Counting("count_by_key", KeyCounts, plus, NamedForm("counts"))
SUM_BY_KEY: Final = Counting("sum_by_key", Sums, plus, NamedForm("sums"))


def fold_by_key(init: Any, add: Callable[[Any, Any], Any], merge: Callable[[Any, Any], Any]) -> Counting:
    """Return how a user's functions count. Raises BuildError for what is none, or an `init` that cannot be copied."""
    verb = "aggregate_by_key"
    function(verb, add, "add")
    function(verb, merge, "merge")
    begin = begins_with(verb, init)
    return Counting(verb, partial(Folds, begin=begin, add=add), merge)


def begins_with(verb: str, init: Any) -> Callable[[], Any]:
    """Return what gives the first accumulation of a key: a copy of `init`. Raises BuildError if it cannot be copied."""
    if callable(init):
        raise BuildError(
            f"{verb}: init must be a value, not a function, because each key starts with a copy of it: pass 0, [] or "
            "{}"
        )
    try:
        is_shared = deepcopy(init) is init
    except Exception as error:
        raise BuildError(f"{verb}: init={init!r:.200} cannot be copied for each key: {error}") from error
    return partial(_itself, init) if is_shared else partial(deepcopy, init)


def _itself(init: Any) -> Any:
    return init


def _given(key: Any, state: Any) -> tuple[Any, list[Any]]:
    """Return what a fold would that gives its state: so the check for aliasing sees a `merge` that changes one."""
    return state, [(key, state)]


class Aggregates(TimedFolds):
    """S on one worker. Cost per key and time: two lookups and a store for each worker that has it, and the output."""

    sets_timers = False

    def __init__(self, core: Core, merge: Callable[[Any, Any], Any]) -> None:
        super().__init__(core, _given)
        self._merge = merge

    def _outputs(self, time: FlatTime, inputs: Sequence[Iterable[Any]]) -> list[Any]:
        """Merge the partial results of a closed time into the states; return the states of their keys."""
        batches: list[Partials] = sorted(*inputs, key=lambda batch: batch.sender)
        if self._core.journal is not None:
            self._core.journal.touch({*chain.from_iterable(batch.keys for batch in batches)})
        merge, states, come_or_go = self._merge, self._core.store.states, self._core.come_or_go
        find = states.get
        out: list[tuple[Any, Any]] = []
        put = out.append
        try:
            for batch in batches:
                for key, value in batch:
                    before = find(key)
                    if before is None:
                        state = value
                        come_or_go(key, None, state)
                    else:
                        state = merge(before, value)
                        if state is None:
                            raise ProgramError(_is_none(self._core.name, f"merge({before!r:.99}, {value!r:.99})", key))
                        states[key] = state
                    put((key, state))
        except (TypeError, ValueError) as error:
            if not raised_by_loop(error):
                raise
            if merge is plus:
                raise ProgramError(_unlike(self._core.name, key, before, value)) from error
            raise ProgramError(
                f"{self._core.name}: merge is called as merge(accumulated, accumulated) and must return both values "
                f"combined; instead: {error}"
            ) from error
        self._timers.pop(time)  # another kind of operator may have left some under this name
        if batches and batches[0].sender != batches[-1].sender:
            out = list(dict(out).items())  # the last of each key
        if self._fold is not _given:
            for key, state in out:
                self._fold(key, state)
        return out if merge is plus else copies_of(out)  # or a reader could change the state

    def _records(self, inputs: Sequence[Iterable[Any]]) -> Pairs:
        """All partial results, as the load counts them."""
        batches: list[Partials] = list(*inputs)
        keys, values = (batch.keys for batch in batches), (batch.values for batch in batches)
        return Pairs([*chain.from_iterable(keys)], [*chain.from_iterable(values)])


class NestedAggregates(Aggregates, NestedFolds):
    """The same in a nested scope."""


def aggregates(core: Core, merge: Callable[[Any, Any], Any]) -> Aggregates:
    """Return the S of this kind for the scope of the operator."""
    return (NestedAggregates if core.nested else Aggregates)(core, merge)


@dataclass(frozen=True, slots=True)
class Placed:
    """What a `Placing` comes to."""

    name: str
    hash: Callable[[Any], int]
    control: Port[Any] | None
    bins: int
    terms: Terms


def place_of(verb: str, placing: Any, form: Form = ANY_FORM) -> Placed:
    """Return where and what an operator is to be. Raises TypeError for an argument that there is not, BuildError."""
    if unknown := sorted(placing.keys() - Placing.__annotations__):
        known = ", ".join(("hash", "control", *Kept.__annotations__) + ("key", "value") * (verb != COUNT_BY_VALUE.verb))
        raise TypeError(f"{verb}() got an unexpected keyword argument {unknown[0]!r}; it takes {known}")
    name = str(placing.get("name") or verb)
    terms = terms_of(name, placing.get("version", 1), placing.get("upgrade"), placing.get("rehash", False), form=form)
    hash = function(name, placing.get("hash", stable_hash), "hash")
    control: Any = placing.get("control")
    if control is not None:
        control = instance(f"control= of {name}", getattr(control, "port", control), Port, "a stream of commands")
    return Placed(name, hash, control, placing.get("bins", 256), terms)


def aggregated(port: Port[Any], counting: Counting, placing: Any) -> Port[Any]:
    """Build the operators of an aggregate. Raises TypeError for an argument, in `placing`, that there is not."""
    place = place_of(counting.verb, placing, counting.form)
    partials = combine(port, place.name, partial(counting.begin, place.name))
    policy = partial(aggregates, merge=counting.merge)
    return build([partials], place.hash, place.control, place.bins, place.name, policy, ByPartial, place.terms)
