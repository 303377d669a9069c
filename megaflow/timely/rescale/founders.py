"""Which membership founded which dataflow: a table that grows by one row with each change.

A dataflow's initial counts and routing tables come from the membership that founded it. So they are the same on all
workers, no matter when each builds the dataflow.
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
    """Return the table in which this membership founds the dataflows from number `first` on."""
    return (*(each for each in foundings if each[0] < first), (first, membership))


class Founders:
    """One worker's view of the table. Between the start of a change and its commit, only the coordinator is sure."""

    def __init__(self, table: Foundings) -> None:
        self.table = table
        self._open = False  # a change is under way
        self._fixed: dict[int, Membership] = {}  # dataflow -> founders, as answered by the coordinator in this change
        self._asked: set[int] = set()  # dataflows that this worker has asked about in this change

    def of(self, dataflow: int) -> Membership | None:
        """Return the founders of a dataflow that is built now; None if the coordinator must say."""
        return self._fixed.get(dataflow) if self._open else founders_of(self.table, dataflow)

    def must_ask(self, dataflow: int) -> bool:
        """Return whether to ask the coordinator. Ask once in each change: an answer does not hold for the next one."""
        asks = self._open and dataflow not in self._asked
        if asks:
            self._asked.add(dataflow)
        return asks

    def open(self) -> None:
        """Note that a change begins."""
        self._open = True
        self._fixed.clear()
        self._asked.clear()

    def fix(self, dataflow: int, founders: Membership) -> None:
        """Note the coordinator's answer."""
        self._fixed[dataflow] = founders

    def commit(self, first: int, membership: Membership) -> None:
        """Note that the change is committed: the new membership founds the dataflows from number `first` on."""
        self.table = add_founding(self.table, first, membership)
        self._open = False

    def close(self) -> None:
        """Note that the change was aborted."""
        self._open = False
