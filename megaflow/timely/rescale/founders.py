"""Which membership founded which dataflow: a table that grows by a row with each change.

A dataflow's initial counts and routing tables come from the membership that founded it, the same on all workers
whenever they build it.
"""

from megaflow.timely.membership import Membership
from megaflow.timely.rescale.messages import Foundings


def founders_of(foundings: Foundings, dataflow: int) -> Membership:
    """Return the membership that founds a dataflow.

    >>> from megaflow.timely.membership import founding
    >>> table = add_founding(((0, founding([0, 1])),), 3, founding([0, 1, 2]))
    >>> founders_of(table, 2).ids, founders_of(table, 3).ids
    ((0, 1), (0, 1, 2))
    """
    return next(membership for first, membership in reversed(foundings) if first <= dataflow)


def add_founding(foundings: Foundings, first: int, membership: Membership) -> Foundings:
    """Return the table in which this membership founds the dataflows from `first` on."""
    return (*(each for each in foundings if each[0] < first), (first, membership))


class Founders:
    """One worker's view of the table. While a change is under way, before its commit, only the coordinator knows."""

    def __init__(self, table: Foundings) -> None:
        self.table = table
        self._open = False  # a change is under way
        self._fixed: dict[int, Membership] = {}  # dataflow -> founders, by the coordinator's word in this change
        self._asked: set[int] = set()  # dataflows that it was asked about in this change

    def of(self, dataflow: int) -> Membership | None:
        """Return who founds a dataflow that is built now; None: that is for the coordinator to say."""
        return self._fixed.get(dataflow) if self._open else founders_of(self.table, dataflow)

    def must_ask(self, dataflow: int) -> bool:
        """Tell whether to ask the coordinator: once in each change, for its word is worth nothing in the next."""
        asks = self._open and dataflow not in self._asked
        if asks:
            self._asked.add(dataflow)
        return asks

    def open(self) -> None:
        """A change begins."""
        self._open = True
        self._fixed.clear()
        self._asked.clear()

    def fix(self, dataflow: int, founders: Membership) -> None:
        """Note the coordinator's word."""
        self._fixed[dataflow] = founders

    def commit(self, first: int, membership: Membership) -> None:
        """The change has taken place; the new membership founds what is built from `first` on."""
        self.table = add_founding(self.table, first, membership)
        self._open = False

    def close(self) -> None:
        """The change has not taken place."""
        self._open = False
