"""Pacts: which worker a record goes to between two operators.

A pact keeps the number of records: consumers receive as many records as were produced. `Broadcast` counts one copy for
each worker as produced. The Membership decides which worker a key belongs to, never a count of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Lane


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Pact: records stay on their worker."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Pact: a record goes to the worker `sorted(ids)[key(record) % len(ids)]`.

    `key` must return an int; use `stable_hash` for other values. The ids are those of the dataflow's founding members
    (*pinned*), because the engine cannot see whether the operator holds state. With `follow`, which `stream.exchange()`
    sets, the ids follow the membership.
    """

    key: Callable[[Any], int]
    follow: bool = False


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Pact: every worker receives a copy of every record."""

    lane: Lane = Lane.DATA


@dataclass(frozen=True, slots=True)
class Addressed:
    """Pact: the producer names the worker of each batch (`Output.ship_to`). Megaphone's F uses its routing table."""

    lane: Lane = Lane.DATA


@dataclass(frozen=True, slots=True)
class Silent:
    """Pact: no records, only progress. The input learns the frontier and costs nothing else."""


Pact = Pipeline | Exchange | Broadcast | Addressed | Silent

PactOrClass = Pact | type[Pipeline] | type[Broadcast]
"""What a program may write: `Pipeline` and `Broadcast` need no parentheses."""


def pact_of(given: PactOrClass) -> Pact | None:
    """Return the pact that `given` stands for, or None if it is not a pact.

    >>> pact_of(Pipeline), pact_of(Pipeline()), pact_of(Exchange)
    (Pipeline(), Pipeline(), None)
    """
    made = given() if given is Pipeline or given is Broadcast else given
    return made if isinstance(made, Pact) else None
