"""A checkpoint on its way to its commit: the parts that the launcher has, and the parts that are missing.

This module computes with values only. A checkpoint begins with `CheckpointBegun`. It can be committed when its segments
and splits are known and the output before its epoch is durable. Segments and splits come with `CheckpointReady` or, at
the end of all lines, with the `Ended` of all workers.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from itertools import chain

from megaflow.control.checkpoint_messages import CheckpointBegun, CheckpointReady, CutWritten, TokensAt
from megaflow.control.messages import Split, SplitEnd
from megaflow.durable.commits import Commit, OperatorCut, OutputLength, input_of, needed
from megaflow.durable.lineage import after_deliveries
from megaflow.errors import ProtocolError
from megaflow.quick_dataclass import dataclass
from megaflow.rows.kept_columns import KeptColumns


@dataclass(frozen=True, slots=True)
class ToCommit:
    """Checkpoint to commit."""

    commit: Commit  # without its splits, unless it repeats another one
    left: tuple[Split, ...] | None  # what is left to read; None: the commit has its splits
    length: int  # common length of the outputs
    names: tuple[str, ...] = ()  # names to give it, unless another checkpoint has them
    read: Mapping[int, SplitEnd] = field(default_factory=dict)  # of splits read to their ends


@dataclass(eq=False)
class CommitDraft:
    """The launcher's knowledge of the checkpoint under way. One writer: the launcher's loop."""

    begun: CheckpointBegun
    begun_at: float = 0.0  # wall-clock seconds
    ready: CheckpointReady | None = None
    length: int | None = None  # of all outputs together, durable up to here
    parts: list[CutWritten] = field(default_factory=list)  # of workers that have ended
    prepared: list[TokensAt] = field(default_factory=list)  # by their sinks
    deadline: int | None = None  # microseconds, of what the end has closed early; None: nothing
    is_committing: bool = False  # `commit` was called

    @property
    def is_complete(self) -> bool:
        """Whether the checkpoint can be committed, and is not being committed."""
        return self.ready is not None and self.length is not None and not self.is_committing

    def add(self, part: CutWritten | TokensAt) -> None:
        """Add a part of a worker that has ended."""
        if isinstance(part, TokensAt):
            self.prepared.append(part)
        else:
            self.parts.append(part)

    @property
    def _watermark(self) -> int | None:
        """The watermark before the checkpoint. It covers what the end has closed, which must not open again."""
        return max((each for each in (self.begun.watermark, self.deadline) if each is not None), default=None)

    @property
    def _furthest(self) -> int | None:
        """The greatest timestamp of all records before the checkpoint: as reported, or beside what is left to read."""
        assert self.ready is not None, "the checkpoint is complete"
        rests = [each.maxima for each in self.ready.splits] + [each.maxima for each in self.ready.partitions]
        beside = [micros for _, micros in chain.from_iterable(rests)]
        known = (self.begun.furthest, self.ready.furthest, *beside)
        return max((each for each in known if each is not None), default=None)

    def end(self) -> None:
        """Note that the parts of all workers have arrived and that nothing is left to read."""
        segments = tuple(segment for part in self.parts for segment in part.segments)
        tokens = (*self.begun.tokens, *(token for each in self.prepared for token in each.tokens))
        whole = merged(part.whole for part in self.parts)
        self.ready = CheckpointReady(self.begun.checkpoint, segments, whole, (), tokens=tokens, read=self.begun.read)

    def commit(
        self, latest: Commit, outputs: tuple[OutputLength, ...], written_at: float, dropped: Collection[str] = ()
    ) -> ToCommit:
        """Return the task to commit it. `latest` is the newest commit, `dropped` are sinks whose records were given up.

        Raises ProtocolError if the checkpoint does not follow `latest`.
        """
        begun, ready, length = self.begun, self.ready, self.length
        assert ready is not None and length is not None, "the checkpoint is not complete"
        if begun.since not in (None, latest.checkpoint) or begun.checkpoint <= latest.checkpoint:
            raise ProtocolError(
                f"checkpoint {begun.checkpoint} follows checkpoint {begun.since}, but the last one that is committed "
                f"is {latest.checkpoint}"
            )
        before = {each.name: each.bases for each in latest.operators if begun.since is not None}
        operators = []
        whole = {name: frozenset(bins) for name, bins in ready.whole}
        for each in begun.operators:
            bases = before.get(each.name, (None,) * each.bins)
            written = whole.get(each.name, frozenset())
            now = (begun.checkpoint if bin in written else base for bin, base in enumerate(bases))
            operators.append(OperatorCut(each.name, each.kind, tuple(now), each.version, each.form, each.partial))
        names = {*begun.sinks, *(each.name for each in begun.operators)}
        before_names = {*(each.name for each in latest.operators), *(each.sink for each in latest.tokens)}
        gone = before_names.union(latest.dropped) - names
        segments = (*(latest.segments if begun.since is not None else ()), *ready.segments)
        left = {partition.number for partition in ready.partitions}
        ends = {partition.number: partition for partition in ready.ended}
        finished = tuple(ends.get(each.number, each) for each in begun.known if each.number not in left)
        commit = Commit(
            number=latest.number, checkpoint=begun.checkpoint, time=begun.epoch, incarnation=latest.incarnation,
            app=latest.app, written_at=written_at, begun_at=self.begun_at, next_worker=begun.next_worker,
            operators=tuple(operators), segments=needed(operators, segments), outputs=outputs,
            spark=tuple(sorted((dict(latest.spark) | dict(begun.spark)).items())), untaken=ready.untaken,
            table=begun.table, ended=begun.at_end, dropped=tuple(sorted(gone)), code=begun.code,
            partitions=ready.partitions, finished=finished, tokens=ready.tokens,
            watermark=self._watermark, clock=begun.clock, sources=begun.sources, members=begun.members,
            bound=ready.bound, furthest=self._furthest, columns=begun.columns, lineage=latest.lineage,
            parents=latest.parents, earlier=latest.earlier,
        )  # fmt: skip
        commit = after_deliveries(commit, latest, begun.sinks, dropped)
        self.is_committing = True
        return ToCommit(commit, ready.splits, length, begun.names, dict(ready.read))


def without_tokens(latest: Commit) -> Commit:
    """Return a commit once all of its tokens are committed."""
    return after_deliveries(replace(latest, tokens=()), latest, dict(latest.delivered))


def with_columns(commit: Commit, columns: Mapping[str, KeptColumns]) -> Commit:
    """Return a commit with the columns of rows, by input, for those inputs that have a batch in it."""
    of_rows = {input: columns[input] for query, _ in commit.spark if (input := input_of(query)) in columns}
    return replace(commit, columns=tuple(sorted((dict(commit.columns or ()) | of_rows).items()))) if of_rows else commit


def merged(whole: Iterable[Iterable[tuple[str, tuple[int, ...]]]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the bins that workers wrote in full, by operator.

    >>> merged([[("count", (0, 2))], [("count", (1,)), ("sum", (3,))]])
    (('count', (0, 1, 2)), ('sum', (3,)))
    """
    bins: dict[str, list[int]] = {}
    for part in whole:
        for name, some in part:
            bins.setdefault(name, []).extend(some)
    return tuple((name, tuple(sorted(some))) for name, some in sorted(bins.items()))
