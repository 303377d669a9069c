"""Aggregates by key: counts, sums and folds of all records so far, one output per key and time at which it changed.

Before F each worker combines its records of a time (`partial_results`). When the time is closed, S merges the time's
partial results into the states and sends (key, state) for each of its keys. So S is of the timed kind, with a fold that
sets no timers: the rules of `stateful_timed` on capabilities, moves, cuts and nested scopes hold here. Only the
treatment of a closed time's batches differs.

S merges partial results, and orders outputs, by the senders' ids, and for each sender in the order in which its keys
came. So the same records at the same times on the same workers give the same outputs, including sums of floats, in
whatever order messages arrive.

`Counting` describes how records are counted: how a worker combines batches, and how two results become one
(`combining`).

With `emit="end"`, S sends nothing at the times of records. It sets a timer at LAST_TIME for each key that has records.
When that time is closed, nothing else can come, and S sends the states of these keys.
 1. A key with a state that was not sent has this timer. S sets it once, at the time that changes the state, and it goes
    with the state into chunks and checkpoints. So the owner at the end sends each key once. A job that has lost a
    process sends the same results as without the loss.
 2. Timers of epochs fire when all inputs have ended, also in a job with a store. The states stay. So a later run sends
    the keys that have records in it, with all records of both runs. A stop of a job that keeps its state fires no
    timers, so the later run then sends the keys of both.
 3. S holds its capability for these timers at LAST_TIME. So they hold back no time before it.
 4. Records may come at LAST_TIME or later, from an aggregate with `emit="end"` before this one. S sends their keys at
    the same time, as nothing else can come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain
from numbers import Rational
from operator import add as plus
from typing import Any, Final, Generic, Literal, Protocol, Required, TypeAlias, TypedDict, TypeVar

from megaflow.durable.restored import ANY_FORM, Form, Terms
from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.base.bins import stable_hash
from megaflow.megaphone.base.flat_times import FlatTime
from megaflow.megaphone.folds.combining import COUNT_BY_VALUE, Counting, is_none, unlike
from megaflow.megaphone.folds.partial_results import ByPartial, Partials, combine
from megaflow.megaphone.folds.stateful_core import Core, build, terms_of
from megaflow.megaphone.folds.stateful_timed import TimedFolds
from megaflow.megaphone.router.splitting import Pairs
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.argument_checks import function, instance, shown
from megaflow.timely.dataflow.error_notes import raised_by_loop, user_line
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.record_copies import copies_of

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")
N = TypeVar("N", bound=complex | Decimal | Rational)
When: TypeAlias = Literal["epoch", "end"]

LAST_TIME: Final = 2**53 - 1
"""A time after those of all records: the greatest int that all readers of JSON keep exact."""


class Steering(Protocol):
    """A stream of commands, as lower layers see it."""

    port: Port[Any]


class Kept(TypedDict, Generic[K], total=False):
    """The name of an operator with a state, and how it reads stored states: see `stateful_state_machine`."""

    bins: int
    name: str | None
    version: int
    upgrade: Callable[[K, Any, int], Any] | None
    rehash: Callable[[K], int] | bool


class Placing(Kept[K], Generic[K], total=False):
    """Options of an aggregate: also the place of its keys."""

    hash: Callable[[K], int]
    control: Steering | None


class Keyed(Placing[K], Generic[K, T, V], total=False):
    """Options of an aggregate: also `key` and `value` of records that are not pairs; `value` defaults to the record."""

    key: Required[Callable[[T], K]]
    value: Callable[[T], V]


class Emitting(Placing[K], Generic[K], total=False):
    """Options of an aggregate: its place, and when it sends results."""

    emit: When


class EmittingKeyed(Keyed[K, T, V], Emitting[K], Generic[K, T, V], total=False):
    """All options of an aggregate."""


def _given(key: Any, state: Any) -> tuple[Any, list[Any]]:
    """Return the state as a fold would, so that the check for aliasing sees a `merge` that changes a state."""
    return state, [(key, state)]


class Aggregates(TimedFolds):
    """S on one worker. Cost per key and time: two lookups and a store for each worker that sent it, and the output."""

    sets_timers = False

    def __init__(self, core: Core, merge: Callable[[Any, Any], Any], at_end: bool) -> None:
        super().__init__(core, _given)
        self._merge = merge
        self._at_end = at_end

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
                            raise ProgramError(is_none(self._core.name, f"merge({before!r:.99}, {value!r:.99})", key))
                        states[key] = state
                    put((key, state))
        except (TypeError, ValueError) as error:
            if not raised_by_loop(error):
                raise
            if merge is plus:
                raise ProgramError(unlike(self._core.name, key, before, value)) from error
            raise ProgramError(
                f"{self._core.name}: merge is called as merge(accumulated, accumulated) and must return both values "
                f"combined; instead: {error}"
            ) from error
        due = self._timers.pop(time)  # an earlier operator of this name, of another kind, may have left some
        if batches and batches[0].sender != batches[-1].sender:
            out = list(dict(out).items())  # the last of each key
        if self._fold is not _given:
            for key, state in out:
                self._fold(key, state)
        if self._at_end:
            out = self._held_back(time, due, out)
        return out if merge is plus else copies_of(out)  # otherwise a reader could change the state

    def _held_back(
        self, time: FlatTime, due: Mapping[int, Iterable[Any]], out: list[tuple[Any, Any]]
    ) -> list[tuple[Any, Any]]:
        """Return the results to send at the close of a time: all keys' results at the end, and none before that."""
        store = self._core.store
        if time >= LAST_TIME:
            keys = dict.fromkeys(chain(chain.from_iterable(due.values()), (key for key, _ in out)))
            return [(key, store.states[key]) for key in keys if key in store.states]
        timers, journal = self._timers, self._core.journal
        for key, _ in out:
            bin = store.bin_of_key(key)
            if not timers.has(LAST_TIME, bin, key):
                timers.add(LAST_TIME, bin, key, None)
                if journal is not None:
                    journal.set_timer(bin, (LAST_TIME, key, None))
        return []

    def _records(self, inputs: Sequence[Iterable[Any]]) -> Pairs:
        """Return all partial results, for the load meter."""
        batches: list[Partials] = list(*inputs)
        keys, values = (batch.keys for batch in batches), (batch.values for batch in batches)
        return Pairs([*chain.from_iterable(keys)], [*chain.from_iterable(values)])


@dataclass(frozen=True, slots=True)
class Placed:
    """The checked options of a `Placing`."""

    name: str
    hash: Callable[[Any], int]
    control: Port[Any] | None
    bins: int
    terms: Terms


def place_of(verb: str, placing: Any, form: Form = ANY_FORM, own: Sequence[str] = ()) -> Placed:
    """Return an operator's checked options. Raises TypeError for an unknown one, BuildError for a wrong value.

    `own`: the names of the operator's other arguments.
    """
    if unknown := sorted(placing.keys() - Placing.__annotations__):
        keyed = ("key", "value") * (verb != COUNT_BY_VALUE.verb)
        known = ", ".join((*own, "hash", "control", *Kept.__annotations__, *keyed, "emit"))
        raise TypeError(f"{verb}() got an unexpected keyword argument {unknown[0]!r}; it takes {known}")
    name = str(placing.get("name") or verb)
    version, upgrade, rehash = placing.get("version", 1), placing.get("upgrade"), placing.get("rehash", False)
    terms = terms_of(name, version, upgrade, rehash, form=form, is_named=bool(placing.get("name")))
    hash = function(name, placing.get("hash", stable_hash), "hash")
    control: Any = placing.get("control")
    if control is not None:
        control = instance(f"control= of {name}", getattr(control, "port", control), Port, "a stream of commands")
    return Placed(name, hash, control, placing.get("bins", 256), terms)


def aggregated(port: Port[Any], counting: Counting, placing: Any) -> Port[Any]:
    """Build the operators of an aggregate.

    Raises TypeError for an unknown argument in `placing`, BuildError for an invalid one.
    """
    when = placing.pop("emit", "epoch")
    place = place_of(counting.verb, placing, counting.form)
    if when not in ("epoch", "end"):
        raise BuildError(
            f'{place.name} ({user_line()}): emit must be "epoch" (a result for each epoch in which a key has records) '
            f'or "end" (one when all input has ended), not {shown(when)}'
        )
    if when == "end" and port.scope.rounds:
        raise BuildError(
            f'{place.name} ({user_line()}): emit="end" is not possible in a nested scope, because a loop has no end of '
            "its own; take the stream out with .leave() and aggregate it there"
        )
    partials = combine(port, place.name, partial(counting.begin, place.name))
    policy = partial(Aggregates, merge=counting.merge, at_end=when == "end")
    return build([partials], place.hash, place.control, place.bins, place.name, policy, ByPartial, place.terms)
