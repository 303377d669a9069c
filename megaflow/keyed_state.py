"""State per key: checks a program's description of a stateful operator and builds the operator from it.

`Stream` has the methods, with their types and documentation. This module chooses the policy behind each: a state
machine, a state machine whose states expire, or a fold of a key's records of one time, with timers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from megaflow import event_time as events
from megaflow.durable.restored import ANY_FORM, BY_CLOCK, BY_EVENTS, Form
from megaflow.errors import BuildError
from megaflow.megaphone.base.event_unit import TimeUnit
from megaflow.megaphone.base.stream_unit import IN_SECONDS, StreamUnit
from megaflow.megaphone.folds.stateful import StateMachine
from megaflow.megaphone.folds.stateful_core import Core, Policy, build, terms_of, title_of
from megaflow.megaphone.folds.stateful_timed import TimedFolds
from megaflow.megaphone.router.splitting import ByKey, ByMadePair, Splitter
from megaflow.stream_end import StreamEnd, port_of
from megaflow.timely.dataflow.argument_checks import function, shown
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators.linear import linear

LAMBDA = "<lambda>"  # Python's name for each lambda


class KeyedState:
    """Description of one stateful operator. Raises BuildError if it is invalid."""

    def __init__(
        self, verb: str, fold: Callable[..., Any], hash: Callable[[Any], int], control: StreamEnd[Any] | None,
        bins: int, name: str | None, version: int, upgrade: Any, rehash: Any,
    ) -> None:  # fmt: skip
        self.name = title_of(verb, fold, name)
        self._fold = fold
        self._hash = hash
        self._control = control
        self._bins = bins
        self._terms = version, upgrade, rehash
        self._is_named = bool(name) or getattr(fold, "__name__", LAMBDA) != LAMBDA

    def machine(self, pairs: Port[Any], ttl: events.Length | None) -> Port[Any]:
        """Return the outputs of a state machine on (key, value) pairs.

        It forgets a key after `ttl` on the job's clock without a record. None: it forgets none.
        """
        if ttl is None:
            return self._build([pairs], partial(StateMachine, fold=self._fold))
        return self._build([pairs], self._lasting(BY_CLOCK, ttl), BY_CLOCK)

    def lasting_by_events(self, stamped: Port[Any], ttl: events.Length) -> Port[Any]:
        """Return the outputs of a state machine with a `ttl` by event time, on pairs with timestamps."""
        policy = self._lasting(BY_EVENTS, ttl)
        timed = linear(stamped, f"{self.name}.by_key", events.by_key(self.name, IN_SECONDS))
        return self._build([timed], policy, BY_EVENTS, ByMadePair)

    def stamped(self, stamp: Any, pairs: Port[Any] | None, unit: StreamUnit, ttl: events.Length | None) -> Port[Any]:
        """Return a state machine's outputs with the stamps of their records, which are pairs with timestamps."""
        self._require_timestamps(pairs is not None)
        if pairs is None or stamp != events.RECORD:
            raise BuildError(
                f'{self.name} ({user_line()}): stamp= of a state machine must be "record", not {shown(stamp)}: its '
                "outputs get the timestamps of their records; stateful_unary takes a function of the output"
            )
        policy = partial(StateMachine, fold=self._fold) if ttl is None else self._lasting(BY_EVENTS, ttl)
        timed = linear(pairs, f"{self.name}.by_key", events.by_key(self.name, unit))
        if ttl is not None:
            timed = linear(timed, f"{self.name}.stamps", events.keep_stamps)

        def stamping(core: Core) -> Policy:
            machine = policy(core)
            machine.stamp_outputs(partial(events.stamp_by_record, unit))
            return machine

        return self._build([timed], stamping, "" if ttl is None else BY_EVENTS, ByMadePair)

    def with_timestamps(self, outputs: Port[Any], stamp: Any, unit: StreamUnit, is_timed: bool) -> Port[Any]:
        """Return the outputs of a fold with timers, with the timestamps that a function returns for them.

        `is_timed`: whether the fold's stream has timestamps.
        """
        self._require_timestamps(is_timed)
        title = f"stamp= of {self.name} ({user_line()})"
        if not callable(stamp):
            raise BuildError(
                f"{title}: it must be a function that returns the timestamp of an output, not {shown(stamp)}: this "
                "fold gets several records in one call; write stamp=lambda output: …"
            )
        return events.stamp_by_function(outputs, self.name, title, function(self.name, stamp, "stamp"), unit)

    def _require_timestamps(self, is_timed: bool) -> None:
        if not is_timed:
            raise BuildError(
                f"{self.name} ({user_line()}): stamp= needs a stream with timestamps; write .event_time(timestamp) "
                "near the source, and stamp= at each fold between it and this one"
            )

    def _lasting(self, kind: str, ttl: events.Length) -> Callable[[Core], StateMachine]:
        return partial(events.TtlMachine, fold=self._fold, kind=kind, ttl=events.length_of(self.name, "ttl", ttl))

    def timed(
        self, pairs: Sequence[Port[Any]], unit: TimeUnit, form: Form = ANY_FORM,
        began: Callable[[Core], None] = lambda core: None,
    ) -> Port[Any]:  # fmt: skip
        """Return the outputs of a fold with timers on one stream of pairs, or on two.

        `form`: that of its states. `began` gets the operator.
        """
        def policy(core: Core) -> TimedFolds:
            began(core)
            return TimedFolds(core, self._fold, unit)

        return self._build(pairs, policy, form=form)

    def _build(
        self, ports: Sequence[Port[Any]], policy: Callable[[Core], Policy], kind: str = "",
        splitter: type[Splitter] = ByKey, form: Form = ANY_FORM,
    ) -> Port[Any]:  # fmt: skip
        """Send the records to the owners of their bins, and apply the policy there."""
        name = self.name
        commands = None if self._control is None else port_of(f"control= of {name}", self._control)
        terms = terms_of(name, *self._terms, kind, form, is_named=self._is_named, fold=self._fold)
        return build(ports, function(name, self._hash, "hash"), commands, self._bins, name, policy, splitter, terms)
