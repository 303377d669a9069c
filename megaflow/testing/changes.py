"""Changes to a simulated cluster: `SimulatedCluster.at(record=100, do=Join())`.

`Move(bin, worker)` and `Map(workers)` of megaflow itself also work here: they move bins as `megaflow control move-bins`
does.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

from megaflow.errors import UsageError
from megaflow.megaphone.base.routing import Map, Move


class _Brief:
    """Base of changes whose repr leaves out defaults."""

    __slots__ = ()

    def __repr__(self) -> str:
        given = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]  # type: ignore[arg-type]
        said = ", ".join(f"{name}={value!r}" for name, value, default in given if value != default)
        return f"{type(self).__name__}({said})"


@dataclass(frozen=True, slots=True, repr=False)
class Join(_Brief):
    """A process joins. Its workers receive routing tables and a share of the bins."""

    server: int | None = None  # in an EngineCluster: the worker through which it joins; None: the coordinator


@dataclass(frozen=True, slots=True, repr=False)
class Leave(_Brief):
    """The process of a worker gives its bins and partitions to the others, then leaves. None: the highest worker's.
    """

    worker: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Kill(_Brief):
    """The process of a worker dies; a durable job resumes by itself. None: the seed chooses a process."""

    worker: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Crash(_Brief):
    """The whole job dies, including the launcher. Then the same command runs again, with `processes` processes.

    With `power`, the disk also loses writes that were not synced, as in a power failure.
    """

    power: bool = False
    processes: int | None = None  # None: as many as before


@dataclass(frozen=True, slots=True, repr=False)
class Stop(_Brief):
    """Ctrl-C: the job processes the lines that it has read. The same command then runs again if the cluster is durable.
    """

    processes: int | None = None  # None: as many as before


@dataclass(frozen=True, slots=True, repr=False)
class MoveSome(_Brief):
    """Some bins move to a worker; the seed chooses both."""


Change: TypeAlias = Join | Leave | Kill | Crash | Stop | Move | Map | MoveSome


def check_change(do: object, durable: bool) -> None:
    """Raise UsageError for a change that cannot happen to a cluster."""
    if not isinstance(do, Change):
        raise UsageError(
            "do= must be one of Join(), Leave(worker), Kill(worker), Crash(), Stop(), Move(bin, worker) or "
            f"Map(workers), not {do!r:.80}."
        )
    if isinstance(do, Join) and do.server is not None:
        raise UsageError("Join(server=…) names a worker of an EngineCluster. Use Join() here.")
    if isinstance(do, Kill | Crash) and not durable:
        raise UsageError(f"{do!r} needs a job that can resume. Use SimulatedCluster(seed, durable=True).")
