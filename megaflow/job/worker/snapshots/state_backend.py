"""One worker's view of the store: the states with which its operators start, its cuts, and its coordinator's data.

1. Only founding workers read the commit: they own bins from the first table on. The `DurablePart` of a joiner names no
   commit, since later checkpoints are valid by then and the files may be removed. A joiner owns no bin at first. Each
   bin that moves to it brings its states, its timers and the watermark (`event_timers`).
2. No file is removed while founders read it: files are removed after a later commit, for which all founders must have
   written their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

from megaflow.connect.sink_host import Writing
from megaflow.connect.source_protocol import Source
from megaflow.control.checkpoint_messages import DurableOperator
from megaflow.control.coordinator.base.job_state import Durable
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.control.wording import KEYS_FORGOTTEN, PARTIAL_LEFT_OUT
from megaflow.durable.blocks import Block
from megaflow.durable.commits import Commit, Fingerprint, OperatorCut, SinkToken
from megaflow.durable.incarnation import DurablePart, read_commit
from megaflow.durable.key_kinds import KeyKinds
from megaflow.durable.lineage import after_deliveries, last_deliveries, standing_of
from megaflow.durable.local_folder import open_in_a_job
from megaflow.durable.recovery import Recovery
from megaflow.durable.restored import WINDOWS, Restored, StateDescriptor, misplaced
from megaflow.durable.state_migration import inherited
from megaflow.durable.store import Store
from megaflow.errors import BuildError, StoreError, StoreUnfit
from megaflow.job.formats.csv_types import OF_TEXT, ReadColumns, Recorded, differing
from megaflow.job.spec import ENGINE
from megaflow.job.worker.reading.open_partitions import shown
from megaflow.job.worker.reading.untaken_lines import restaged, untaken_batches
from megaflow.job.worker.snapshots.cut_keeper import CutKeeper
from megaflow.job.worker.snapshots.cut_packer import CutPacker
from megaflow.job.worker.snapshots.local_recovery import LocalRecovery
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.durability import Durability, Piece
from megaflow.megaphone.base.event_unit import NEVER
from megaflow.megaphone.snapshot.journal import Journal
from megaflow.megaphone.snapshot.retained_bins import RetainedBins
from megaflow.program import Worker
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.dataflow.graph import Graph, Node

Count: TypeAlias = Callable[[str, str, int, Callable[[], str] | None], None]
"""Adds to the count of a kind of remark: (operator, kind, count, text for the first); see `wording.READ_COUNTS`."""


def open_folder(folder: str) -> Store:
    """Open a store for reading and writing."""
    return Store(open_in_a_job(folder))


class StateBackend:
    """One worker's share of a job's durable state."""

    def __init__(
        self,
        worker: Worker,
        part: DurablePart,
        open_store: Callable[[str], Store] = open_folder,
        keeper: type[CutKeeper] = CutKeeper,
        memory: LocalRecovery | None = None,
    ) -> None:
        """Open the store. Raises StoreError. `memory`: states as of the commit that the process still has.
        """
        self._worker = worker
        self._part = part
        self._memory = LocalRecovery() if memory is None else memory
        self.folder = part.folder
        self.count: Count = lambda operator, kind, count, text: None  # set before the dataflow is built
        self.standing = part.standing  # of the store, as the launcher began with it
        self.store = open_store(part.folder)  # also of the outboxes
        self._durability = Durability()  # of the dataflow, once it is built
        self._kinds: dict[str, KeyKinds] = {}  # of operators, once they are built
        self._sinks: tuple[str, ...] = ()  # names of the sinks, once the dataflow is built
        self._columns: tuple[tuple[str, Recorded], ...] = ()  # of CSV inputs, once the dataflow is built
        packer = CutPacker(self.store, part.incarnation, worker.index, self._operators)
        self.keeper = keeper(packer, self._encoding_seconds, worker.allocator.wake)

    def equip(self, durability: Durability) -> None:
        """Make the operators that are built from now on durable; each begins with its states in the commit."""
        self._durability = durability
        durability.sink, durability.spent = self.keeper.write, self.keeper.clock
        if self._part.is_changed:
            durability.sink = self._write_checked
        durability.restore = self._restore if self._part.commit is not None else None
        durability.partial_until, durability.emits_partial = self._part.partial.of, self._part.partial.are_emitted
        durability.leave_out = lambda operator, text: self.count(operator, PARTIAL_LEFT_OUT, 1, text)

    def check(self, graph: Graph) -> None:
        """Raise BuildError for an operator whose effect on the outputs no checkpoint would include."""
        for node in graph.nodes:
            if (objection := objection_to(node)) is not None:
                raise BuildError(f"{node.title}, {node.where}: {objection}, or leave --state out.")
        host = graph.extension(Writing).host
        self._sinks = () if host is None else host.names
        self._columns = tuple(sorted(graph.extension(ReadColumns).of.items()))
        for name in {*self._part.standing.accepted}.difference(self._sinks):
            there = ", ".join(map(repr, self._sinks)) or "none"
            raise StoreUnfit(f"--accept-rows {name}: The program has no sink of this name. It writes to {there}.")

    def _check_sinks(self) -> None:
        """Raise StoreError unless the program writes, by name, to each sink whose prepared rows are not committed."""
        number, tokens = self.tokens()
        for name in sorted({token.sink for token in tokens}.difference(self._sinks)):
            raise StoreError(
                f"Rows of checkpoint {number} wait for the sink {name!r}, but the program writes to no sink of "
                f"this name (it writes to {', '.join(map(repr, self._sinks)) or 'none'}). Keep the name until "
                f"another checkpoint is committed, or discard these rows by --drop-state {name}."
            )

    def check_sources(self, names: Collection[str]) -> None:
        """Raise StoreUnfit unless the program reads, by name, all sources that have positions in the commit."""
        known = () if self._commit is None else (*self._commit.partitions, *self._commit.finished)
        for name in sorted({each.input for each in known}.difference(names)):
            raise StoreUnfit(
                f"The store has positions in the source {name!r}, but the program reads no source of this name "
                f"(it reads {', '.join(map(repr, sorted(names))) or 'none'}). Read it by flow.read(…, {name!r}), "
                "give --follow if it stood for followed files, or start over with a new --state folder."
            )

    def tell_ended(self, sources: Mapping[str, Source[Any]], tell: Callable[[str, str], None]) -> None:
        """Report partitions whose end position an earlier version did not store: this job cannot continue them."""
        for partition in () if self._commit is None else self._commit.finished:
            if not partition.ended_in and getattr(sources[partition.input], "ends_resumably", False):
                text = (
                    f"source {partition.input!r}: an earlier version of megaflow read "
                    f"{shown(decode(partition.partition))} to its end and did not keep its position, "
                    "so this job reads no newer records of it. Start over "
                    "with a new --state folder, and let the source leave out what was read"
                )
                tell(text, text)

    def tokens(self) -> tuple[int, tuple[SinkToken, ...]]:
        """Return the number of the checkpoint from which the job resumes, and its prepared tokens. Raises StoreError.
        """
        if (commit := self._commit) is None:
            return 0, ()
        return commit.checkpoint, tuple(token for token in commit.tokens if token.sink not in self._part.dropped)

    def restaged(self) -> Iterator[StageLines | StageEnd]:
        """Yield the messages that stage Spark's lines again, on a founding worker. Raises the store's errors.

        `durable` includes the commands that commit them.
        """
        if self._commit is not None:
            yield from restaged(self._commit, self.store, self._worker.index, self._worker.membership.ids)

    def stop(self) -> list[tuple[StateDescriptor, RetainedBins]]:
        """Stop writing to the store, as the worker has ended; return the operators' states in memory. Blocks."""
        self.keeper.stop()
        descriptors = self._durability.descriptors
        return [(descriptors[name], RetainedBins.of(store, journal)) for name, store, journal in self._stores()]

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def event_time(self) -> tuple[int, int]:
        """Return the commit's watermark and clock, in microseconds; NEVER for either that is not known."""
        commit = self._commit
        if commit is None or commit.checkpoint == 0:
            return NEVER, NEVER
        return NEVER if commit.watermark is None else commit.watermark, commit.clock

    def durable(self, begins: bool, code: Fingerprint | None = None) -> Durable:
        """Return the durable facts that a coordinator must know.

        `begins`: it is the first coordinator of this incarnation. `code`: the fingerprint of its program's files.

        Raises StoreError if the operators cannot resume from the commit.
        """
        descriptors = self._durability.descriptors.values()
        operators = tuple(
            DurableOperator(
                each.name, each.bins, each.terms.version, each.terms.kind, form := each.terms.form.text(),
                self._part.partial.of(each.name) if form.startswith(WINDOWS) else None,
            )
            for each in descriptors
        )
        every, run = self._part.checkpoint_every, self._part.run
        table = next((view.table() for view in self._worker.stateful if begins), ())
        new = Durable(operators, every, code=code, table=table, columns=self._columns, run=run)
        if not begins or (commit := self._commit) is None:
            return new
        if commit.checkpoint == 0:
            return replace(new, next_worker=commit.next_worker)
        untaken = untaken_batches(commit, self._worker.membership.ids)
        whole = self._is_to_be_whole(commit)
        delivered = after_deliveries(commit, commit, self._sinks, self._part.dropped)
        new = replace(new, last=tuple(last_deliveries(standing_of(delivered)).values()))
        return replace(
            new, committed=commit.checkpoint, epoch=commit.time, next_worker=commit.next_worker, whole=whole,
            spark=commit.spark, untaken=untaken, partitions=commit.partitions, finished=commit.finished,
            watermark=commit.watermark, clock=commit.clock, bound=commit.bound, furthest=commit.furthest,
        )  # fmt: skip

    def rehearse(self, sources: Collection[str]) -> None:
        """Raise StoreError if the operators and sinks that are built, and `sources`, cannot resume from the commit.

        Three faults are found only later: a hash that changes no bin's first key, an `upgrade` that fails, and keys of
        another type. Cost: reads the states, and decodes one block of each bin.
        """
        assert self._commit is not None, "a new store needs no rehearsal"
        self._is_to_be_whole(self._commit)
        self.check_sources(sources)
        for descriptor in self._durability.descriptors.values():
            if (wrong := self._recovery.misplaced(descriptor)) is not None:
                raise misplaced(descriptor.name, *wrong)
            self._recovery.check_readable(descriptor)

    def given_up(self) -> tuple[tuple[str, int], ...]:
        """Return the operators of the commit whose states the user gives up, with the keys written of each."""
        there = [] if self._commit is None else [cut.name for cut in self._commit.operators]
        return tuple((name, self._recovery.keys_written(name)) for name in there if name in self._part.dropped)

    def rewindowed(self) -> tuple[str, ...]:
        """Return the operators whose windows an `upgrade` changes."""
        descriptors = () if self._commit is None else self._durability.descriptors.values()
        return tuple(each.name for each in descriptors if self._recovery.has_other_windows(each))

    def converts(self) -> bool:
        """Return whether an `upgrade` converts the states of each operator that the program keeps of the commit."""
        assert self._commit is not None, "a new store needs no rehearsal"
        return self._are_converted(self._inherited(self._commit))

    def _inherited(self, commit: Commit) -> dict[str, OperatorCut]:
        return inherited(commit, self._durability.descriptors.values(), self._part.renamed, self._part.dropped)

    def _are_converted(self, found: Mapping[str, OperatorCut]) -> bool:
        descriptors = self._durability.descriptors
        return all(cut.version != descriptors[name].terms.version for name, cut in found.items())

    def _is_to_be_whole(self, commit: Commit) -> bool:
        self._check_sinks()
        descriptors = self._durability.descriptors.values()
        found = self._inherited(commit)
        if not self._are_converted(found):
            check_columns(self._columns, commit.columns)
        is_same = len(found) == len(commit.operators) == len(descriptors)  # none is gone, and none is new
        return not is_same or any(map(self._recovery.changes, descriptors))

    @cached_property
    def _commit(self) -> Commit | None:
        return None if self._part.commit is None else read_commit(self.store, self._part.commit)

    @cached_property
    def _recovery(self) -> Recovery:
        assert self._commit is not None, "an operator asks for a bin of the commit"
        return Recovery(self.store, self._commit, dict(self._part.renamed))

    def _restore(self, descriptor: StateDescriptor, bins: Collection[int]) -> Restored:
        recovery = self._recovery
        kinds = recovery.key_kinds(descriptor) if self._part.is_changed else None
        if kinds is not None:
            self._kinds[descriptor.name] = kinds
        found = self._memory.restore(descriptor, bins, recovery)
        if found.forgotten:
            self.count(descriptor.name, KEYS_FORGOTTEN, found.forgotten, None)
        return replace(found, bases=recovery.bases(descriptor), key_kinds=kinds)

    def _write_checked(self, cut: Piece, block: Block | None) -> None:
        """Write an operator's cut, unless its keys now have another kind: see `key_kinds`."""
        if (kinds := self._kinds.get(cut.operator)) is not None:
            kinds.check()
        self.keeper.write(cut, block)

    def _stores(self) -> list[tuple[str, BinStore, Journal]]:
        return [(view.name, view.store, view.journal) for view in self._worker.stateful if view.journal is not None]

    def _operators(self) -> list[str]:
        return [name for name, _, _ in self._stores()]

    def _encoding_seconds(self) -> float:
        return sum(journal.seconds for _, _, journal in self._stores())


def check_columns(wanted: Iterable[tuple[str, Recorded]], stored: Iterable[tuple[str, Recorded]] | None) -> None:
    """Raise StoreUnfit if keys and states were made from columns of other types; `stored` has the commit's types."""
    before = {name: OF_TEXT for name, _ in wanted} if stored is None else dict(stored)
    for name, columns in wanted:
        if (found := differing(before.get(name, ()), columns)) is None:
            continue
        column, old, new = found
        what = f"column {column!r}" if column else "columns"
        call = f"flow.csv({name!r})" if name else "flow.csv()"
        types = "str" if not column or old == "str" else f"{{{column!r}: {old}}}"
        raise StoreUnfit(
            f"The keys and states in the store were made from {what} of {call} as {old}, but the program reads "
            f"{'it' if column else 'them'} as {new}. Old and new values would not match. Give flow.csv types={types}, "
            "or start over with a new --state folder. If no key has these values, you can also convert the states: "
            "give each operator the next version= and upgrade=f(key, state, version)."
        )


def objection_to(node: Node) -> str | None:
    """Return why an operator may not be in a durable job, and what to use instead; None if it may."""
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
