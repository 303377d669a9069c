"""Durable jobs whose attempts must begin with the owners of the previous attempt.

1. When a launcher resumes from a checkpoint, its workers, in the order of their ids, own the bins that the checkpoint's
   workers owned. If there are fewer workers, the bins of the missing ones go to others, but not to workers that owned
   nothing. If there are more, the additional workers may take bins from others, which take none.
2. After a loss, a bin stays at a surviving process that has it in memory. Every other bin is at its address in the
   newest checkpoint of the previous attempt, or at the start of that attempt, unless a surviving process had it there.
"""

from collections.abc import Sequence
from typing import Any

from megaflow.durable.commits import Commit
from megaflow.job.spec import Address
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_process import SimulatedProcess


class OwningJob(SimulatedJob):
    """Job that checks the owners at the start of each attempt."""

    _is_first = True  # whether no attempt has begun
    _table: tuple[int, ...] = ()  # the last attempt's first table; empty: unknown
    _since = 0  # the checkpoint that the last attempt started from
    _first = 0  # the number of the last attempt's first process

    def found(self, processes: Sequence[SimulatedProcess]) -> None:
        """Found a job with these processes, once all have met, and check its owners."""
        kept, before = kept_bins(processes), self.processes[self._first :]
        addresses = {id: each.address for each in before if each not in processes for id in each.programs}
        super().found(processes)
        storage, commit = self.storage, self.storage.begun if self.storage is not None else None
        tables = {view.table() for process in processes for each in process.workers for view in each.stateful}
        is_first, before_first = self._is_first, self._table
        self._is_first, self._table = False, ()
        if storage is None or commit is None or len(tables) != 1:
            return  # nothing is durable, or a process failed at its start
        [table] = tables
        if is_first and commit.checkpoint:
            check_resumed(commit, table, len(processes) * self.spec.workers)
        elif before_first and commit.checkpoint:
            before_table = commit.table if commit.checkpoint > self._since else before_first
            owned_at = [addresses.get(owner) for owner in before_table]
            check_recovered(owned_at, table, processes, self.spec.workers, kept)
        self._table, self._since = table, commit.checkpoint
        self._first = self.processes.index(processes[0])


def kept_bins(processes: Sequence[SimulatedProcess]) -> dict[int, Address]:
    """Return bin -> address of the first surviving process that has it in memory."""
    found: dict[int, Address] = {}
    for process in processes:
        before: Any = process._before
        for several in before.descriptors if before is not None else ():
            for _, remains in several:
                found = dict.fromkeys(remains.bins, process.address) | found
    return found


def check_resumed(commit: Commit, table: tuple[int, ...], count: int) -> None:
    """Raise AssertionError if rule 1 is broken for a table of `count` workers."""
    members = sorted(commit.members)
    owned = {members.index(owner) for owner in commit.table}
    for bin, owner in enumerate(commit.table):
        place, now = members.index(owner), table[bin]
        is_kept = now == place if place < count <= len(members) else now in owned or now >= len(members)
        is_kept = is_kept and (now == place or place >= count or now >= len(members))
        assert is_kept or not any(each < count for each in owned), f"{commit.table} of {members} is {table} now"


def check_recovered(
    before: Sequence[Address | None], table: tuple[int, ...], processes: Sequence[SimulatedProcess], workers: int,
    kept: dict[int, Address],
) -> None:  # fmt: skip
    """Raise AssertionError if rule 2 is broken."""
    places = [process.address for process in processes for _ in range(workers)]
    staying = {process.address for process in processes if process._before is not None}
    for bin, address in enumerate(before):
        wanted = kept.get(bin, None if address in staying else address)
        if wanted in places:
            assert places[table[bin]] == wanted, f"bin {bin}, of {wanted}, is at {places[table[bin]]}"
