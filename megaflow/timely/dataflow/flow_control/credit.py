"""Credit: how many records a channel may have under way to one worker, as both ends count them.

The sender counts the records that it has sent and for which it has no credit back yet (`Credits`). The receiver counts
the records that its operator has taken and for which it has not given credit back (`Debts`). A return is a number of
records. With a window of W records:

1. A target's credit is used up when W or more records are not given back. This is advice: sending still works.
2. The receiver gives back once it owes W / 2 or more (at least one). So there is at most one return per half window.
3. No sender waits forever for a return that the receiver keeps back. The records that the sender counts are under way,
   queued at the receiver, or owed. Those under way arrive, and those queued are taken (see `handoffs`). Then all are
   owed. If that is W / 2 or more, the receiver gives it back; if it is less, credit is not used up.
4. A worker that has left gives nothing back, so it is forgotten. Worker ids are never used again.
"""

from __future__ import annotations

from collections.abc import Callable

from megaflow.errors import ProtocolError
from megaflow.timely.dataflow.flow_control.gates import Downstream, Gate


class WorkerCredit(Gate):
    """Records that one worker has not given back. Closed while its credit is used up."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0  # records


class Credits:
    """Sending end of one channel."""

    def __init__(self, window: int) -> None:
        self._accounts: dict[int, WorkerCredit] = {}  # target worker -> what it has not given back
        self._downstreams: list[Downstream] = []  # those that contain the credit of every worker
        self._window = window  # records

    def spend(self, worker: int, records: int) -> None:
        """Note that a batch leaves for a worker. A worker that was never sent anything has its whole window."""
        account = self._accounts.get(worker)
        if account is None:
            account = self._accounts[worker] = WorkerCredit()
            account.downstreams = self._downstreams
        account.used += records
        if account.used >= self._window and not account.closed:
            account.close()

    def take_back(self, worker: int, records: int) -> None:
        """Note a return by a worker. Ignores a forgotten worker. Raises ProtocolError if the worker owed fewer."""
        account = self._accounts.get(worker)
        if account is None:
            return
        if not 0 < records <= account.used:
            raise ProtocolError(f"worker {worker} gives credit back for {records} records, but had {account.used}")
        account.used -= records
        if account.closed and account.used < self._window:
            account.open()

    def forget(self, worker: int) -> None:
        """Expect no returns from a worker that has left."""
        account = self._accounts.pop(worker, None)
        if account is not None and account.closed:
            account.open()

    def enter(self, downstream: Downstream) -> None:
        """Make the credit of every present and future worker part of `downstream`."""
        downstream.rooms.append(self.room)
        self._downstreams.append(downstream)
        downstream.closed.update(account for account in self._accounts.values() if account.closed)

    def room(self) -> int:
        """Return how many records may go to any worker before its credit is used up. Less than 1 if it is used up."""
        return self._window - max((account.used for account in self._accounts.values()), default=0)

    def used(self, worker: int) -> int:
        """Return how many records a worker has not given back."""
        account = self._accounts.get(worker)
        return account.used if account is not None else 0

    def _check(self) -> None:
        for account in self._accounts.values():
            assert account.used >= 0 and account.closed == (account.used >= self._window), "closed when used up"
            assert account.downstreams is self._downstreams, "one for all workers"
            account._check()


class Debts:
    """Receiving end of one channel."""

    def __init__(self, window: int, tell: Callable[[], None]) -> None:
        """`tell()` is called when something becomes due."""
        self._owed: dict[int, int] = {}  # source worker -> records taken and not given back
        self.due: set[int] = set()  # sources that are owed enough
        self._enough = max(1, window // 2)
        self._tell = tell

    def add(self, worker: int, records: int) -> None:
        """Note that records from a worker were taken."""
        owed = self._owed[worker] = self._owed.get(worker, 0) + records
        if owed >= self._enough and worker not in self.due:
            self.due.add(worker)
            self._tell()

    def owed(self, worker: int) -> int:
        """Return how many records of a worker were taken and not given back."""
        return self._owed.get(worker, 0)

    def settle(self) -> list[tuple[int, int]]:
        """Remove and return the due pairs (worker, records), to be given back at once."""
        due = [(worker, self._owed.pop(worker)) for worker in sorted(self.due)]
        self.due.clear()
        return due

    def forget(self, worker: int) -> None:
        """Owe nothing to a worker that has left."""
        self._owed.pop(worker, None)
        self.due.discard(worker)

    def _check(self) -> None:
        assert all(records > 0 for records in self._owed.values()), "what is owed is more than nothing"
        assert self.due == {worker for worker, records in self._owed.items() if records >= self._enough}, "rule 2"
