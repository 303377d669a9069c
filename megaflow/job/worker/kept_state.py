"""The store as one worker uses it: what its operators begin with, where their cuts go, and what its coordinator knows.

1. Only workers that found the job read the commit: they own bins from the first table on. The part of a worker that
   joins names no commit: later checkpoints count by then, and the files may be removed.
   It owns no bin, and each bin that moves there brings its states, its timers and the watermark (`event_timers`).
2. Nothing that founders read is removed meanwhile: files go after a later commit, for which all founders must have
   written.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Final

from megaflow.connect.write_operator import Writing
from megaflow.control.checkpoint_messages import CutFailed, CutWritten, DurableOperator
from megaflow.control.coordinator.job_state import Durable
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.durable.blocks import Block
from megaflow.durable.commits import Commit, Fingerprint, SinkToken
from megaflow.durable.incarnation import DurablePart, read_commit
from megaflow.durable.inheritance import inherited
from megaflow.durable.key_kinds import KeyKinds
from megaflow.durable.local_folder import open_in_a_job
from megaflow.durable.recovery import Recovery
from megaflow.durable.restored import Heir, Restored, misplaced
from megaflow.durable.store import FolderStore, Store
from megaflow.errors import BuildError, StoreError, StoreUnfit
from megaflow.job.worker.cut_keeper import CutKeeper, Outcome
from megaflow.job.worker.cut_packer import CutPacker, OutboxCut
from megaflow.job.worker.memory import Memory
from megaflow.job.worker.untaken_lines import LinesCut, restaged, untaken_batch
from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.event_unit import NEVER
from megaflow.megaphone.journal import Durability, Journal
from megaflow.megaphone.remains import Remains
from megaflow.megaphone.unwritten import Piece
from megaflow.program import Worker
from megaflow.timely.dataflow.graph import Graph, Node

ENGINE: Final = "megaflow"  # where a worker's own operators stand


def open_folder(folder: str) -> Store:
    """Open a store, to read it or to put something there."""
    return FolderStore(open_in_a_job(folder))


class KeptState:
    """One worker's share of a job's durable state."""

    def __init__(
        self,
        worker: Worker,
        part: DurablePart,
        open_store: Callable[[str], Store] = open_folder,
        keeper: type[CutKeeper] = CutKeeper,
        memory: Memory | None = None,
    ) -> None:
        """Open the store. Raises StoreError. `memory`: of the commit, if the process has been one of the job before."""
        self._worker = worker
        self._part = part
        self._memory = Memory() if memory is None else memory
        self._store = open_store(part.folder)
        self._commit: Commit | None = None  # once it is read
        self._recovery: Recovery | None = None  # once a bin is wanted
        self._durability = Durability()  # of the dataflow, once it is built
        self._kinds: dict[str, KeyKinds] = {}  # of operators, once they are built
        self._sinks: tuple[str, ...] = ()  # likewise, the names of what it writes to
        packer = CutPacker(self._store, part.incarnation, worker.index, self._operators)
        self._keeper = keeper(packer, self._encoding_seconds, worker.allocator.wake)

    def equip(self, durability: Durability) -> None:
        """Make the operators durable that are built from now on, each beginning with what the commit has of it."""
        self._durability = durability
        durability.sink, durability.spent = self._keeper.write, self._keeper.clock
        if self._part.is_changed:
            durability.sink = self._write_checked
        durability.restore = self._restore if self._part.commit is not None else None

    def check(self, graph: Graph) -> None:
        """Raise BuildError for an operator whose part in the outputs no checkpoint would have."""
        for node in graph.nodes:
            if (objection := objection_to(node)) is not None:
                raise BuildError(f"{node.title}, {node.where}: {objection}, or leave --state out.")
        host = graph.extension(Writing).host
        self._sinks = () if host is None else host.names

    def _check_sinks(self) -> None:
        """Raise StoreError unless the program writes, by their names, to all sinks that are to commit something."""
        number, tokens = self.tokens()
        for name in sorted({token.sink for token in tokens}.difference(self._sinks)):
            raise StoreError(
                f"Rows of checkpoint {number} wait for the sink {name!r}, but the program writes to no sink of "
                f"this name (it writes to {', '.join(map(repr, self._sinks)) or 'none'}). Keep the name until "
                f"another checkpoint is committed, or discard these rows by --drop-state {name}."
            )

    def check_sources(self, names: Collection[str]) -> None:
        """Raise StoreUnfit unless the program reads, by their names, all sources in which the commit has positions."""
        commit = None if self._part.commit is None else self._read()
        known = () if commit is None else (*commit.portions, *commit.finished)
        for name in sorted({each.input for each in known}.difference(names)):
            raise StoreUnfit(
                f"The store has positions in the source {name!r}, but the program reads no source of this name "
                f"(it reads {', '.join(map(repr, sorted(names))) or 'none'}). Read it by flow.read(…, {name!r}), "
                "give --follow if it stood for followed files, or start over with a new --state folder."
            )

    def tokens(self) -> tuple[int, tuple[SinkToken, ...]]:
        """Return the checkpoint that the job goes on from, and what sinks had prepared by then. Raises StoreError."""
        if self._part.commit is None:
            return 0, ()
        commit = self._read()
        return commit.checkpoint, tuple(token for token in commit.tokens if token.sink not in self._part.dropped)

    @property
    def folder(self) -> str:
        """Where the store is."""
        return self._part.folder

    @property
    def store(self) -> Store:
        """Where outboxes are."""
        return self._store

    def keep_outbox(self, cut: OutboxCut) -> None:
        """Write the records of an outbox; what comes of it is among the reports."""
        self._keeper.write(cut, None)

    def keep_lines(self, cut: LinesCut) -> None:
        """Write Spark's lines that the source has not taken in; what comes of it is a report."""
        self._keeper.write(cut, None)

    def restaged(self) -> Iterator[StageLines | StageEnd]:
        """Yield what is to be staged again of Spark's lines, on a worker that founds the job. Raises as the store does.

        `durable` has the command that commits it.
        """
        if self._part.commit is not None:
            yield from restaged(self._read(), self._store, self._worker.index, self._worker.membership.ids)

    def take_reports(self) -> list[Outcome]:
        """Return, once, what has come of checkpoints: for the coordinator, and of outboxes."""
        return self._keeper.take_reports()

    def finish(self) -> CutWritten | CutFailed | None:
        """Wait until all is written; return what came of the checkpoint at the end, if there was one."""
        return self._keeper.finish()

    def stop(self) -> list[tuple[Heir, Remains]]:
        """End, as the worker has: write no more to the store; return what is in memory of the operators. Blocks."""
        self._keeper.stop()
        heirs = self._durability.heirs
        return [(heirs[name], Remains.of(store, journal)) for name, store, journal in self._stores()]

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def event_time(self) -> tuple[int, int]:
        """Return the watermark and the clock, in microseconds, that all before the commit has seen; or NEVER."""
        commit = None if self._part.commit is None else self._read()
        if commit is None or commit.checkpoint == 0:
            return NEVER, NEVER
        return NEVER if commit.watermark is None else commit.watermark, commit.clock

    def durable(self, begins: bool, code: Fingerprint | None = None) -> Durable:
        """Return what a coordinator must know, which runs `code`; `begins`: it is the first one of this incarnation.

        Raises StoreError if the operators cannot go on with what the commit has.
        """
        heirs = self._durability.heirs.values()
        operators = tuple(
            DurableOperator(heir.name, heir.bins, heir.terms.version, heir.terms.kind, heir.terms.form.text())
            for heir in heirs
        )
        every = self._part.checkpoint_every
        table = next((view.table() for view in self._worker.stateful if begins), ())
        if not begins or self._part.commit is None:
            return Durable(operators, every, code=code, table=table)
        commit = self._read()
        if commit.checkpoint == 0:
            return Durable(operators, every, next_worker=commit.next_worker, code=code, table=table)
        untaken = untaken_batch(commit, self._worker.membership.ids)
        whole = self._is_to_be_whole(commit)
        return Durable(
            operators, every, commit.checkpoint, commit.time, commit.next_worker, code,
            commit.spark, untaken, whole, table, commit.portions, commit.finished,
            watermark=commit.watermark, clock=commit.clock, bound=commit.bound,
        )  # fmt: skip

    def rehearse(self, sources: Collection[str]) -> None:
        """Raise StoreError if the operators that are built, sinks and `sources` cannot go on with what the commit has.

        Three faults are found later: a hash that changes no bin's first key, an `upgrade` that fails, and keys of
        another type. Cost: reads the states, and decodes a block of each bin.
        """
        self._is_to_be_whole(self._read())
        self.check_sources(sources)
        for heir in self._durability.heirs.values():
            if (wrong := self._recover().misplaced(heir)) is not None:
                raise misplaced(heir.name, *wrong)
            self._recover().check_readable(heir)

    def _is_to_be_whole(self, commit: Commit) -> bool:
        self._check_sinks()
        heirs = self._durability.heirs.values()
        found = inherited(commit, heirs, self._part.renamed, self._part.dropped)
        return len(found) < len(commit.operators) or any(map(self._recover().changes, heirs))

    def _read(self) -> Commit:
        assert self._part.commit is not None
        if self._commit is None:
            self._commit = read_commit(self._store, self._part.commit)
        return self._commit

    def _recover(self) -> Recovery:
        if self._recovery is None:
            self._recovery = Recovery(self._store, self._read(), dict(self._part.renamed))
        return self._recovery

    def _restore(self, heir: Heir, bins: Collection[int]) -> Restored:
        recovery = self._recover()
        kinds = recovery.key_kinds(heir) if self._part.is_changed else None
        if kinds is not None:
            self._kinds[heir.name] = kinds
        found = self._memory.restore(heir, bins, recovery)
        return replace(found, bases=recovery.bases(heir), key_kinds=kinds)

    def _write_checked(self, cut: Piece, block: Block | None) -> None:
        """Write what is cut of an operator, unless its keys are of another kind now: see `key_kinds`."""
        if (kinds := self._kinds.get(cut.operator)) is not None:
            kinds.check()
        self._keeper.write(cut, block)

    def _stores(self) -> list[tuple[str, BinStore, Journal]]:
        return [(view.name, view.store, view.journal) for view in self._worker.stateful if view.journal is not None]

    def _operators(self) -> list[str]:
        return [name for name, _, _ in self._stores()]

    def _encoding_seconds(self) -> float:
        return sum(journal.seconds for _, _, journal in self._stores())


def objection_to(node: Node) -> str | None:
    """Say why an operator may not be in a durable job, and what to do instead; None if it may."""
    states = "keep states and set timers in stateful_unary or stateful_state_machine"
    if node.carries is not None:
        return (
            f"it carries {node.carries} from one time to a later one, which no checkpoint includes, so a crash "
            f"would lose them; {states}"
        )
    if node.loses is not None:
        return (
            f"it may drop or merge records ({node.loses}), so records that are read again after a crash would "
            f"come out differently; {states}"
        )
    if not node.targets and node.by_hand is not False and node.where != ENGINE:
        return (
            "it sends records that cannot be read again after a crash, as --state requires; read them by "
            "flow.lines(), declare them dispensable by scope.source(…, stateless=True)"
        )
    if node.by_hand:
        return (
            "it is written by hand, so no checkpoint includes what it keeps from one time to the next; "
            f"{states}, declare that it keeps nothing by stateless=True"
        )
    return None
