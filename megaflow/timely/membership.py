"""The workers of a cluster as a value with a version.

Ids are never reused and may have gaps. So no code may count from 0 to the number of workers: it iterates over
`Membership.ids`.
"""

from collections.abc import Iterable
from dataclasses import field
from typing import TypeAlias

from megaflow.errors import UsageError
from megaflow.quick_dataclass import dataclass

WorkerId: TypeAlias = int


@dataclass(frozen=True, slots=True)
class Membership:
    """The workers that belong to the cluster from one membership change to the next.

    Raises UsageError if there is no worker, or if the coordinator is not one of them.

    >>> Membership(3, frozenset({7, 2, 4}), coordinator=4).ids
    (2, 4, 7)
    """

    version: int  # 0 for the founders, one more after each committed change
    workers: frozenset[WorkerId]
    coordinator: WorkerId  # puts changes and commands into one order
    ids: tuple[WorkerId, ...] = field(init=False, repr=False, compare=False)  # the workers, sorted

    def __post_init__(self) -> None:
        if not self.workers:
            raise UsageError("a membership needs at least one worker")
        if self.coordinator not in self.workers:
            raise UsageError(f"the coordinator {self.coordinator} must be one of the workers {sorted(self.workers)}")
        object.__setattr__(self, "ids", tuple(sorted(self.workers)))

    @property
    def names(self) -> str:
        """The workers in words: `0, 1, 4`."""
        return ", ".join(map(str, self.ids))


def founding(ids: Iterable[WorkerId]) -> Membership:
    """Return version 0 of a cluster: these workers, coordinated by the lowest id.

    >>> founding([3, 1])
    Membership(version=0, workers=frozenset({1, 3}), coordinator=1)
    """
    workers = frozenset(ids)
    return Membership(0, workers, min(workers, default=0))
