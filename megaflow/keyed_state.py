"""State per key: what a program says of a stateful operator, checked, and the operator built from it.

`Stream` has the methods, with their types and documentation. This module chooses the policy behind each: a state
machine, one whose states have a time to live, or a fold of a key's records of one time, with timers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from megaflow.durable.restored import BY_CLOCK, BY_EVENTS
from megaflow.event_time.windowed import by_key
from megaflow.event_time.windows import Length, length_of
from megaflow.megaphone.event_clock import IN_SECONDS
from megaflow.megaphone.event_unit import TimeUnit
from megaflow.megaphone.splitting import ByKey, ByMadePair, Splitter
from megaflow.megaphone.stateful_core import Core, Policy, build, terms_of, title_of
from megaflow.megaphone.stateful_durable import state_machine
from megaflow.megaphone.stateful_lasting import lasting_machine
from megaflow.megaphone.stateful_timed import timed_folds
from megaflow.stream_end import StreamEnd, port_of
from megaflow.timely.dataflow.given import function
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators.linear import linear


class KeyedState:
    """Description of one stateful operator. Raises BuildError for what cannot be one."""

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

    def machine(self, pairs: Port[Any]) -> Port[Any]:
        """Return the outputs of a state machine on (key, value) pairs."""
        return self._build([pairs], partial(state_machine, fold=self._fold))

    def lasting_by_clock(self, pairs: Port[Any], ttl: Length) -> Port[Any]:
        """Return the outputs of a state machine that forgets a key after `ttl` on the job's clock without a record."""
        return self._build([pairs], self._lasting(BY_CLOCK, ttl), BY_CLOCK)

    def lasting_by_events(self, stamped: Port[Any], ttl: Length) -> Port[Any]:
        """Return the same for pairs with timestamps, by event time."""
        policy = self._lasting(BY_EVENTS, ttl)
        timed = linear(stamped, f"{self.name}.by_key", by_key(self.name, IN_SECONDS))
        return self._build([timed], policy, BY_EVENTS, ByMadePair)

    def _lasting(self, kind: str, ttl: Length) -> Callable[[Core], Policy]:
        return partial(lasting_machine, fold=self._fold, kind=kind, ttl=length_of(self.name, "ttl", ttl))

    def timed(self, pairs: Sequence[Port[Any]], unit: TimeUnit) -> Port[Any]:
        """Return the outputs of a fold with timers on one stream of pairs, or on two."""
        return self._build(pairs, partial(timed_folds, fold=self._fold, unit=unit))

    def _build(
        self, ports: Sequence[Port[Any]], policy: Callable[[Core], Policy], kind: str = "",
        splitter: type[Splitter] = ByKey,
    ) -> Port[Any]:  # fmt: skip
        """Send the records to the owners of their bins, and apply the policy there."""
        name = self.name
        commands = None if self._control is None else port_of(f"control= of {name}", self._control)
        terms = terms_of(name, *self._terms, kind)
        return build(ports, function(name, self._hash, "hash"), commands, self._bins, name, policy, splitter, terms)
